"""``nsqtools stats --check``: one result for monitoring, whatever happens."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from nsqtools.cli.exits import cause, debugging, words
from nsqtools.cli.options import Command
from nsqtools.config.option import flag_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config import CheckOptions, ClusterOptions, StatsOptions
    from nsqtools.engine.cluster import Snapshot
    from nsqtools.policy.checks import Limits, Peers, Verdict

_FLAG = "check"
_VARIABLE = "NSQTOOLS_STATS_CHECK"
_REPORTS = ("count", "once", "clients", "watch", "json", "csv")
"""Options of reports, of which a check is none."""

_ELSEWHERE = (KeyboardInterrupt, BrokenPipeError, click.Abort, click.exceptions.Exit)
"""What ends a check as it ends any command: a signal, a reader that went away, --help."""


class PluginCommand(Command):
    """A command that with ``--check`` ends as a monitoring plugin does, also if that is wrong.

    The guidelines want UNKNOWN, 3, for what other commands end with 1, 2 or 3 for.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """As click's, but with --check a usage error is UNKNOWN."""
        if not _asked(args) or extra.get("resilient_parsing"):
            return super().make_context(info_name, args, parent, **extra)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _ELSEWHERE:
            raise
        except Exception as error:
            raise click.exceptions.Exit(_unknown(error)) from error

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, but with --check each error is UNKNOWN."""
        if not ctx.params["check"]:
            _refuse_idle(ctx)
            return super().invoke(ctx)
        try:
            _refuse_reports(ctx)
            return super().invoke(ctx)
        except _ELSEWHERE:
            raise
        except Exception as error:
            given = {name: ctx.params.get(name) for name in Output._fields}
            return _unknown(error, Output(**{n: value for n, value in given.items() if value}))


def _asked(args: Sequence[str]) -> bool:
    """Whether arguments that may be wrong ask for a check, or else the environment does."""
    own = args[: args.index("--")] if "--" in args else args
    for arg in reversed(own):
        name, _, value = arg.partition("=")
        if name in (f"--{_FLAG}", f"-{_FLAG}"):
            return value.lower() not in ("false", "0", "no", "off", "f")
        if name == f"--no-{_FLAG}":
            return False
    return os.environ.get(_VARIABLE, "").lower() in ("true", "1", "yes", "on", "t")


class Output(NamedTuple):
    """Where a result goes to and how, and the names that are asked for."""

    format: str = "nagios"
    outfile: str = ""
    topic: str = ""
    channel: str = ""

    def render(self, verdict: Verdict, snapshot: Snapshot | None = None) -> str:
        """The result in its form; ``snapshot`` is what it was made of, unless it was not."""
        from nsqtools.cli.stats.results import RENDER

        if self.format == "prometheus":
            return _prometheus(verdict, snapshot, self)
        return RENDER[self.format](verdict)

    def tell(self, verdict: Verdict, snapshot: Snapshot | None = None) -> None:
        """Print it, or replace the file by it; raises _OutfileError, which names it."""
        from nsqtools.cli.stats.results import replace_file

        text = self.render(verdict, snapshot)
        if self.outfile in ("", "-"):
            click.echo(text, nl=False)
            return
        try:
            replace_file(self.outfile, text)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise _OutfileError(f"--outfile {self.outfile}: {reason}") from error


class _OutfileError(click.ClickException):
    """The file could not be written: what it has is old, and the result must be told elsewhere."""


def _unknown(error: BaseException, output: Output | None = None) -> int:
    """Tell why there is no result; the exit status.

    It replaces an older result of --outfile too, which would pass for the present one.
    """
    from nsqtools.errors import OutputClosedError
    from nsqtools.policy.checks import unknown

    error = cause(error)
    if isinstance(error, OutputClosedError):
        raise error
    if debugging():
        from traceback import print_exception

        print_exception(error)
    verdict = unknown(words(error))
    try:
        if isinstance(error, _OutfileError):
            output = None
        (output or Output()).tell(verdict)
    except _OutfileError as failed:
        Output().tell(unknown(f"{verdict.summary}; {failed.message}"))
    except BrokenPipeError:
        raise
    except OSError as failed:  # nor can standard output
        sys.stderr.write(f"nsqtools: standard output: {failed.strerror}\n")
        os._exit(verdict.status)
    return int(verdict.status)


def _refuse_idle(ctx: click.Context) -> None:
    """Raise UsageError for an option of --check without it: it looks as if that were watched."""
    from nsqtools.config import CheckOptions

    for name in CheckOptions.declared():
        if name not in ("check", "serve") and _typed(ctx, name):
            raise click.UsageError(f"--{flag_name(name)} is for --check: give that too", ctx)
    if ctx.params["serve"]:
        _refuse_reports(ctx, "--serve", ("interval",))


def _refuse_reports(ctx: click.Context, mode: str = "--check", more: Sequence[str] = ()) -> None:
    """Raise UsageError for an option of reports; in the configuration file it may stand."""
    for name in (*_REPORTS, *more):
        if _typed(ctx, name):
            hint = "; give --format json" if name == "json" and mode == "--check" else ""
            raise click.UsageError(f"{mode} and --{flag_name(name)} exclude each other{hint}", ctx)


def _typed(ctx: click.Context, name: str) -> bool:
    given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    return given and bool(ctx.params.get(name))


def run(where: ClusterOptions, asked: StatsOptions, check: CheckOptions) -> int:
    """Look at the cluster once, or twice for rates, and tell the result; the exit status."""
    import asyncio

    output = Output(check.format, check.outfile, asked.topic, asked.channel)

    async def checked() -> int:
        verdict, snapshot = await _look(where, asked, limits_of(check))
        output.tell(verdict, snapshot)
        return int(verdict.status)

    try:
        return asyncio.run(checked())
    except _ELSEWHERE:
        raise
    except Exception as error:
        return _unknown(error, output)


def limits_of(check: CheckOptions) -> Limits:
    """The thresholds that options give."""
    from nsqtools.policy.checks import Limit, Limits

    def limit(name: str, unset: float = -1) -> Limit:
        warn, crit = (getattr(check, f"{name}_{level}") for level in ("warn", "crit"))
        return Limit(None if warn == unset else warn, None if crit == unset else crit)

    return Limits(
        depth=limit("depth"),
        in_flight=limit("inflight"),
        requeue_rate=limit("requeue_rate"),
        timeout_rate=limit("timeout_rate"),
        age=limit("age", 0.0),
        clients_min=check.clients_min,
        nsqds_min=check.nsqds_min,
        paused=check.paused,
    )


def peers_of(snapshot: Snapshot) -> Peers:
    """Who was asked, and who answered."""
    from nsqtools.policy.checks import Peers

    def error(found: Exception | None) -> str | None:
        return None if found is None else str(found)

    return Peers(
        {name: error(snapshot.failures.get(name)) for name in snapshot.nodes},
        {name: error(each) for name, each in snapshot.lookupds.items()},
        {n: each.health for n, each in snapshot.stats.items() if each.health not in ("", "OK")},
    )


async def _look(
    where: ClusterOptions, asked: StatsOptions, limits: Limits
) -> tuple[Verdict, Snapshot]:
    import asyncio

    from nsqtools.cli.cluster import open_cluster
    from nsqtools.policy.checks import judge
    from nsqtools.policy.rates import Rates

    polls = 2 if limits.need_rates else 1
    cluster = open_cluster(where, looks=polls, quiet=True)
    rates = Rates()

    async def look() -> Snapshot:
        topic, channel = asked.topic or None, asked.channel or None
        return await cluster.look(topic, channel, everywhere=bool(limits.nsqds_min))

    async with cluster:
        snapshot = await look()
        rows = rates.record(snapshot.samples(), snapshot.topics())
        if polls > 1 and snapshot.stats:
            await asyncio.sleep(asked.interval)
            snapshot = await look()
            rows = rates.record(snapshot.samples(), snapshot.topics())
    peers = peers_of(snapshot)
    verdict = judge(limits, rows, peers, topic=asked.topic, channel=asked.channel)
    return verdict, snapshot


def _prometheus(verdict: Verdict, snapshot: Snapshot | None, asked: Output) -> str:
    from nsqtools.cli.metrics import render
    from nsqtools.cli.stats.exporting import check_metrics, cluster_metrics

    metrics = check_metrics(verdict, topic=asked.topic, channel=asked.channel)
    if snapshot:
        metrics += cluster_metrics(snapshot)
    text, _ = render(metrics, process=False)
    return text.decode()
