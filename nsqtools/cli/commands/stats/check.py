"""``nsqtools stats --check``: one result, as monitoring plugins print it."""

from __future__ import annotations

import math
import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nsqtools.cli.exits import Ended, cause, debugging, error_line, one_line
from nsqtools.cli.options import Command
from nsqtools.config.option import flag_name
from nsqtools.errors import OutputClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.config.admin import ClusterOptions
    from nsqtools.config.stats import CheckOptions, StatsOptions
    from nsqtools.engine.cluster import Snapshot
    from nsqtools.policy.checks import CheckResult, Datum, Limits, Peers

_FLAG = "check"
_VARIABLE = "NSQTOOLS_STATS_CHECK"
_MAX_LINES = 50  # Nagios keeps 8 KiB of an output
_NOT_IN_LABELS = re.compile(r"[='|]")

_ELSEWHERE = (BrokenPipeError, OutputClosedError, click.Abort, click.exceptions.Exit)
"""Exceptions with the usual exit status even with --check: a signal, a closed output, --help."""


class PluginCommand(Command):
    """A command that exits like a monitoring plugin with ``--check``, even after an error.

    The guidelines require UNKNOWN (3) where other commands exit with 1, 2 or 3.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse as click does, but with --check a usage error is UNKNOWN."""
        with _as_plugin(is_check=_asked(args) and not extra.get("resilient_parsing")):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run as click does, but with --check every error is UNKNOWN."""
        if not ctx.params["check"]:
            _refuse_idle(ctx)
        with _as_plugin(is_check=ctx.params["check"]):
            return super().invoke(ctx)


@contextmanager
def _as_plugin(*, is_check: bool) -> Iterator[None]:
    """Print every error as the result UNKNOWN, and raise Ended with its exit status."""
    try:
        yield
    except Exception as raised:
        error = cause(raised)
        if not is_check or isinstance(error, _ELSEWHERE):
            raise
        if debugging():
            from traceback import print_exception

            print_exception(error)
        from nsqtools.policy.checks import unknown

        result = unknown(error_line(error))
        try:
            click.echo(nagios(result), nl=False)
        except BrokenPipeError:
            raise
        except OSError as failed:  # standard output is full
            sys.stderr.write(f"nsqtools: standard output: {failed.strerror}\n")
            os._exit(result.status)
        raise Ended(result.status) from error


def _asked(args: Sequence[str]) -> bool:
    """Whether --check is given, in the environment or in arguments that may be invalid."""
    own = args[: args.index("--")] if "--" in args else args
    for arg in reversed(own):
        name, _, value = arg.partition("=")
        if name in (f"--{_FLAG}", f"-{_FLAG}"):
            return value.lower() not in ("false", "0", "no", "off", "f")
        if name == f"--no-{_FLAG}":
            return False
    return os.environ.get(_VARIABLE, "").lower() in ("true", "1", "yes", "on", "t")


def _refuse_idle(ctx: click.Context) -> None:
    """Raise UsageError for a threshold without --check: it would have no effect."""
    from nsqtools.config.stats import CheckOptions

    for name in CheckOptions.declared().keys() - {"check", "serve"}:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{flag_name(name)} needs --check", ctx)


async def check(servers: ClusterOptions, asked: StatsOptions) -> None:
    """Ask the cluster once, or twice for rates; print the result. Raises Ended with its status."""
    import asyncio

    from nsqtools.cli.remotes import open_cluster
    from nsqtools.policy.checks import judge
    from nsqtools.policy.rates import Rates

    limits = limits_of(asked)
    polls = 2 if limits.need_rates else 1
    rates = Rates()
    async with open_cluster(servers, looks=polls, quiet=True) as cluster:
        for poll in range(polls):
            if poll:
                await asyncio.sleep(asked.interval)
            snapshot = await cluster.look(
                asked.topic or None, asked.channel or None, everywhere=bool(limits.nsqds_min)
            )
            rows = rates.record(snapshot.samples(), snapshot.topics())
            if not snapshot.stats:
                break
    peers = peers_of(snapshot)
    result = judge(limits, rows, peers, topic=asked.topic, channel=asked.channel)
    click.echo(nagios(result), nl=False)
    raise Ended(result.status)


def limits_of(check: CheckOptions) -> Limits:
    """The thresholds given by the options."""
    from nsqtools.policy.checks import Limit, Limits

    def limit(name: str, unset: float = -1) -> Limit:
        warn, crit = (getattr(check, f"{name}_{level}") for level in ("warn", "crit"))
        return Limit(None if warn == unset else warn, None if crit == unset else crit)

    return Limits(
        depth=limit("depth"),
        requeue_rate=limit("requeue_rate"),
        timeout_rate=limit("timeout_rate"),
        age=limit("age", 0.0),
        clients_min=check.clients_min,
        nsqds_min=check.nsqds_min,
        paused=check.paused,
    )


def peers_of(snapshot: Snapshot) -> Peers:
    """All servers asked, each with its error if it did not answer."""
    from nsqtools.policy.checks import Peers

    def error(found: Exception | None) -> str | None:
        return None if found is None else str(found)

    return Peers(
        {name: error(snapshot.silent.get(name)) for name in snapshot.nodes},
        {name: error(each) for name, each in snapshot.lookupds.items()},
        {n: each.health for n, each in snapshot.stats.items() if each.health not in ("", "OK")},
    )


def nagios(result: CheckResult) -> str:
    """A line with state and numbers, then a line for each trouble if there are several.

    The format follows the Monitoring Plugins Development Guidelines (Plugin Output, Performance
    data).
    """
    data = " ".join(map(_datum, result.data))
    first = f"NSQ {result.status.name} - {_plain(result.summary)}"
    lines = [f"{first} | {data}" if data else first]
    if len(result.troubles) > 1:
        shown = result.troubles[:_MAX_LINES]
        lines += [f"{each.status.name}: {_plain(str(each))}" for each in shown]
        if more := len(result.troubles) - len(shown):
            lines.append(f"and {more} more")
    return "".join(f"{line}\n" for line in lines)


def _datum(datum: Datum) -> str:
    """``'label'=value[UOM];[warn];[crit];[min];[max]``; an unknown value is U."""
    from nsqtools.policy.checks import number

    is_finite = datum.value is not None and math.isfinite(datum.value)
    value = f"{number(datum.value or 0)}{datum.unit}" if is_finite else "U"
    limits = [
        "" if limit is None else f"{number(limit)}{':' if datum.at_least else ''}"
        for limit in (datum.limit.warn, datum.limit.crit)
    ]
    maximum = "" if datum.maximum is None else number(datum.maximum)
    label = _NOT_IN_LABELS.sub("_", one_line(datum.label))
    return f"'{label}'={';'.join((value, *limits, '0', maximum))}".rstrip(";")


def _plain(text: str) -> str:
    """One line without bars: a bar would begin the performance data."""
    return one_line(text).replace("|", "/")
