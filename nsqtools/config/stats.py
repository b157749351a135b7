"""What stats reports, and what monitoring wants of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nsqtools.config.consuming import _listening
from nsqtools.config.option import Options, flag_name, option, option_class
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from nsqtools.names import Address


def _threshold(help: str, kind: Literal["integer", "number"] = "number") -> Any:  # noqa: A002
    """A number that is not to be exceeded; -1 is none, for 0 is one."""
    return option(-1, kind, help, minimum=-1, default_note="-1, not checked")


@option_class
class StatsOptions(Options):
    """What ``stats`` reports, how often and how."""

    title: ClassVar[str] = "Report"

    topic: str = option(
        "",
        "text",
        "Only this topic.",
        metavar="TOPIC",
        values="topic",
        default_note="all",
    )
    channel: str = option(
        "",
        "text",
        "Only channels of this name.",
        metavar="CHANNEL",
        values="channel",
        default_note="all",
    )
    interval: float = option(2.0, "duration", "Time between reports.", minimum=0.01)
    count: int = option(
        0,
        "integer",
        "End after this many reports.",
        minimum=0,
        short="n",
        default_note="no limit",
    )
    once: bool = option(
        False, "flag", "Report once and at once, with no rates.", excludes=("count", "watch")
    )
    clients: bool = option(False, "flag", "Report consumers, a row for each.")
    watch: bool = option(
        False,
        "flag",
        "Show a live view: sort with s, filter with /, end with q.",
        excludes=("json", "csv", "clients"),
    )
    json: bool = option(False, "flag", "Print an object for each report.", excludes=("csv",))
    csv: bool = option(False, "flag", "Print rows with commas between, after a header.")


@option_class
class CheckOptions(Options):
    """What monitoring wants of ``stats``: to be told of trouble, or to be served the numbers."""

    title: ClassVar[str] = "Monitoring"

    check: bool = option(
        False,
        "flag",
        "Check once, as monitoring plugins do: the exit status is 0 for OK, 1 for WARNING, 2 for "
        "CRITICAL and 3 for UNKNOWN.",
        in_file=False,
        excludes=("serve",),
    )
    depth_warn: int = _threshold("WARNING if more messages than this wait.", "integer")
    depth_crit: int = _threshold("CRITICAL if more messages than this wait.", "integer")
    inflight_warn: int = _threshold("WARNING if more than this are in flight.", "integer")
    inflight_crit: int = _threshold("CRITICAL if more than this are in flight.", "integer")
    requeue_rate_warn: float = _threshold("WARNING if more than this are requeued per second.")
    requeue_rate_crit: float = _threshold("CRITICAL if more than this are requeued per second.")
    timeout_rate_warn: float = _threshold("WARNING if more than this time out per second.")
    timeout_rate_crit: float = _threshold("CRITICAL if more than this time out per second.")
    age_warn: float = option(
        0.0,
        "duration",
        "WARNING if messages wait longer than this, by an estimate; 0 checks nothing.",
        minimum=0.0,
        default_note="not checked",
    )
    age_crit: float = option(
        0.0,
        "duration",
        "CRITICAL if messages wait longer than this, by an estimate; 0 checks nothing.",
        minimum=0.0,
        default_note="not checked",
    )
    clients_min: int = option(
        0,
        "integer",
        "CRITICAL if a channel has fewer clients, on all nsqds together.",
        minimum=0,
        default_note="not checked",
    )
    nsqds_min: int = option(
        0,
        "integer",
        "CRITICAL if fewer nsqds answer, whatever topics they have.",
        minimum=0,
        default_note="not checked",
    )
    paused: bool = option(False, "flag", "CRITICAL if a topic or channel is paused.")
    serve: str = option(
        "",
        "text",
        "Serve metrics of all nsqds for Prometheus here, over HTTP, until stopped: :PORT is one of "
        "127.0.0.1, and port 0 a free one, which -v tells.",
        metavar="HOST:PORT",
        default_note="not served",
        in_file=False,
    )

    def validate(self) -> None:
        """The address is one, and WARNING comes before CRITICAL."""
        try:
            _ = self.serve_address
        except ConfigError as error:
            raise ConfigError(f"--serve: {error}") from None
        for name in ("depth", "inflight", "requeue_rate", "timeout_rate", "age"):
            warn, crit = getattr(self, f"{name}_warn"), getattr(self, f"{name}_crit")
            unset = 0.0 if name == "age" else -1
            if crit != unset and warn > crit:
                flag = flag_name(name)
                raise ConfigError(f"--{flag}-warn is over --{flag}-crit: it would never be told")

    @property
    def serve_address(self) -> Address | None:
        """Where to listen; the port may be 0."""
        return _listening(self.serve)
