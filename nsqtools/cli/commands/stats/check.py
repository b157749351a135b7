"""``nsqtools stats --check``: one result, as monitoring plugins print it."""

from __future__ import annotations

import math
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nsqtools.cli.exits import cause, debugging, one_line, words
from nsqtools.cli.options import Command
from nsqtools.config.option import flag_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqtools.config import CheckOptions, ClusterOptions, StatsOptions
    from nsqtools.engine.cluster import Snapshot
    from nsqtools.policy.checks import CheckResult, Datum, Limits, Peers

_FLAG = "check"
_VARIABLE = "NSQTOOLS_STATS_CHECK"
_REPORTS = ("count", "once", "clients", "watch", "json", "csv")
"""Options of reports, of which a check is none."""

_MOST_LINES = 50  # Nagios keeps 8 KiB of an output
_NOT_IN_LABELS = re.compile(r"[='|]")

_ELSEWHERE = (KeyboardInterrupt, BrokenPipeError, click.Abort, click.exceptions.Exit)
"""What ends a check as it ends any command: a signal, a reader that went away, --help."""


class PluginCommand(Command):
    """A command that with ``--check`` ends as a monitoring plugin does, also after an error.

    The guidelines want UNKNOWN (3) where other commands end with 1, 2 or 3.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse as click does, but with --check a usage error is UNKNOWN."""
        if not _asked(args) or extra.get("resilient_parsing"):
            return super().make_context(info_name, args, parent, **extra)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _ELSEWHERE:
            raise
        except Exception as error:
            raise click.exceptions.Exit(_unknown(error)) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run as click does, but with --check every error is UNKNOWN."""
        if not ctx.params["check"]:
            _refuse_idle(ctx)
            return super().invoke(ctx)
        try:
            _refuse_reports(ctx)
            return super().invoke(ctx)
        except _ELSEWHERE:
            raise
        except Exception as error:
            return _unknown(error)


def _asked(args: Sequence[str]) -> bool:
    """Whether --check is given, in arguments that may be wrong or in the environment."""
    own = args[: args.index("--")] if "--" in args else args
    for arg in reversed(own):
        name, _, value = arg.partition("=")
        if name in (f"--{_FLAG}", f"-{_FLAG}"):
            return value.lower() not in ("false", "0", "no", "off", "f")
        if name == f"--no-{_FLAG}":
            return False
    return os.environ.get(_VARIABLE, "").lower() in ("true", "1", "yes", "on", "t")


def _tell(verdict: CheckResult) -> int:
    """Print a result; returns the exit status."""
    click.echo(nagios(verdict), nl=False)
    return int(verdict.status)


def _unknown(error: BaseException) -> int:
    """Print why there is no result; returns the exit status."""
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
        return _tell(verdict)
    except BrokenPipeError:
        raise
    except OSError as failed:  # standard output is full
        sys.stderr.write(f"nsqtools: standard output: {failed.strerror}\n")
        os._exit(verdict.status)


def _refuse_idle(ctx: click.Context) -> None:
    """Raise UsageError for a threshold without --check, which would not be looked at."""
    from nsqtools.config import CheckOptions

    for name in CheckOptions.declared():
        if name not in ("check", "serve") and _typed(ctx, name):
            raise click.UsageError(f"--{flag_name(name)} is for --check: give that too", ctx)
    if ctx.params["serve"]:
        _refuse_reports(ctx, "--serve", ("interval",))


def _refuse_reports(ctx: click.Context, mode: str = "--check", more: Sequence[str] = ()) -> None:
    """Raise UsageError for an option of reports on the command line."""
    for name in (*_REPORTS, *more):
        if _typed(ctx, name):
            raise click.UsageError(f"{mode} and --{flag_name(name)} exclude each other", ctx)


def _typed(ctx: click.Context, name: str) -> bool:
    given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    return given and bool(ctx.params.get(name))


def run(where: ClusterOptions, asked: StatsOptions, check: CheckOptions) -> int:
    """Ask the cluster once, or twice for rates, and print the result; returns the exit status."""
    import asyncio

    return _tell(asyncio.run(_look(where, asked, limits_of(check))))


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
    """Which servers were asked, and the errors of those that did not answer."""
    from nsqtools.policy.checks import Peers

    def error(found: Exception | None) -> str | None:
        return None if found is None else str(found)

    return Peers(
        {name: error(snapshot.failures.get(name)) for name in snapshot.nodes},
        {name: error(each) for name, each in snapshot.lookupds.items()},
        {n: each.health for n, each in snapshot.stats.items() if each.health not in ("", "OK")},
    )


async def _look(where: ClusterOptions, asked: StatsOptions, limits: Limits) -> CheckResult:
    import asyncio

    from nsqtools.cli.remotes import open_cluster
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
    return judge(limits, rows, peers_of(snapshot), topic=asked.topic, channel=asked.channel)


def nagios(verdict: CheckResult) -> str:
    """A line of state and numbers, then one for each finding if there are several.

    As the Monitoring Plugins Development Guidelines want it (Plugin Output, Performance data).
    """
    data = " ".join(map(_datum, verdict.data))
    first = f"NSQ {verdict.status.name} - {_plain(verdict.summary)}"
    lines = [f"{first} | {data}" if data else first]
    if len(verdict.troubles) > 1:
        shown = verdict.troubles[:_MOST_LINES]
        lines += [f"{each.status.name}: {_plain(str(each))}" for each in shown]
        if more := len(verdict.troubles) - len(shown):
            lines.append(f"and {more} more")
    return "".join(f"{line}\n" for line in lines)


def _datum(datum: Datum) -> str:
    """``'label'=value[UOM];[warn];[crit];[min];[max]``; U is a value that could not be had."""
    from nsqtools.policy.checks import number

    known = datum.value is not None and math.isfinite(datum.value)
    value = f"{number(datum.value or 0)}{datum.unit}" if known else "U"
    limits = [
        "" if limit is None else f"{number(limit)}{':' if datum.at_least else ''}"
        for limit in (datum.limit.warn, datum.limit.crit)
    ]
    most = "" if datum.maximum is None else number(datum.maximum)
    label = _NOT_IN_LABELS.sub("_", one_line(datum.label))
    return f"'{label}'={';'.join((value, *limits, '0', most))}".rstrip(";")


def _plain(text: str) -> str:
    """One line without the bar that separates text from performance data."""
    return one_line(text).replace("|", "/")
