"""Options of stats: reports and monitoring."""

from __future__ import annotations

from typing import Any

from nsqtools.config.consuming import METRICS_ADDRESS
from nsqtools.config.option import (
    NO_LIMIT,
    Options,
    channel_name,
    duration,
    flag,
    flag_name,
    integer,
    like,
    number,
    topic_name,
)
from nsqtools.config.program import JSON
from nsqtools.errors import ConfigError

_MONITORING = ("check", "serve")  # exclude options of reports
_NOT_CHECKED = {"minimum": -1, "default_note": "-1, not checked"}  # 0 is a valid threshold


def _warn(declared: Any) -> Any:
    return like(declared, help=declared.help.replace("CRITICAL", "WARNING"))


_DEPTH = integer("CRITICAL if more messages than this wait.", -1, **_NOT_CHECKED)
_REQUEUED = number("CRITICAL if more than this are requeued per second.", -1, **_NOT_CHECKED)
_TIMED_OUT = number("CRITICAL if more than this time out per second.", -1, **_NOT_CHECKED)
_AGE = duration(
    "CRITICAL if messages wait longer than this, by an estimate, or wait and none leaves the "
    "channel.",
    0.0,
    default_note="not checked",
)


class CheckOptions(Options):
    """Options of ``stats`` for monitoring plugins and Prometheus."""

    title = "Monitoring"

    check: bool = flag(
        "Check once, as a monitoring plugin: exit code 0 for OK, 1 for WARNING, 2 for "
        "CRITICAL, 3 for UNKNOWN.",
        in_file=False,
        excludes=("serve",),
    )
    depth_warn: int = _warn(_DEPTH)
    depth_crit: int = _DEPTH
    requeue_rate_warn: float = _warn(_REQUEUED)
    requeue_rate_crit: float = _REQUEUED
    timeout_rate_warn: float = _warn(_TIMED_OUT)
    timeout_rate_crit: float = _TIMED_OUT
    age_warn: float = _warn(_AGE)
    age_crit: float = _AGE
    clients_min: int = integer(
        "CRITICAL if a channel has fewer clients than this, over all nsqds.",
        0,
        default_note="not checked",
    )
    nsqds_min: int = integer(
        "CRITICAL if fewer nsqds than this answer.", 0, default_note="not checked"
    )
    paused: bool = flag("CRITICAL if a topic or channel is paused.")
    serve: str = like(
        METRICS_ADDRESS,
        help="Serve metrics of all nsqds for Prometheus at this address, until stopped. :PORT "
        "listens on 127.0.0.1; port 0 picks a free port, logged with -v.",
        in_file=False,
    )

    def validate(self) -> None:
        """Raise ConfigError if a WARNING threshold is above its CRITICAL threshold."""
        for name in ("depth", "requeue_rate", "timeout_rate", "age"):
            warn, crit = f"{name}_warn", f"{name}_crit"
            unset = self.declared()[crit].default
            if getattr(self, warn) > getattr(self, crit) != unset:
                raise ConfigError(
                    f"--{flag_name(warn)} is above --{flag_name(crit)}: WARNING would never be "
                    "reported",
                    options=(warn, crit),
                )


class StatsOptions(CheckOptions):
    """Options of ``stats`` for reports."""

    title = "Report"

    topic: str = topic_name("Only this topic.", default_note="all")
    channel: str = channel_name("Only this channel.", default_note="all")
    interval: float = duration("Time between reports.", 2.0, minimum=0.01, excludes=("serve",))
    count: int = integer(
        "Stop after this many reports.", 0, short="n", default_note=NO_LIMIT, excludes=_MONITORING
    )
    once: bool = flag("Report once, without rates.", excludes=("count", "watch", *_MONITORING))
    clients: bool = flag("Report each consumer in a row.", excludes=_MONITORING)
    watch: bool = flag(
        "Show a live view: sort with s, end with q.",
        excludes=("json", "csv", "clients", *_MONITORING),
    )
    json: bool = like(JSON, excludes=("csv", *_MONITORING))
    csv: bool = flag("Print comma-separated values, with a header.", excludes=_MONITORING)
