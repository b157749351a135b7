"""``nsqtools stats --check``: one result for monitoring, whatever happens."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

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
        if not ctx.params["check_"]:
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
    """Whether arguments that may be wrong ask for a check, or else the environment does."""
    own = args[: args.index("--")] if "--" in args else args
    for arg in reversed(own):
        name, _, value = arg.partition("=")
        if name in (f"--{_FLAG}", f"-{_FLAG}"):
            return value.lower() not in ("false", "0", "no", "off", "f")
        if name == f"--no-{_FLAG}":
            return False
    return os.environ.get(_VARIABLE, "").lower() in ("true", "1", "yes", "on", "t")


def _unknown(error: BaseException) -> int:
    """Print why there is no result; the exit status."""
    from nsqtools.cli.stats.results import nagios
    from nsqtools.errors import OutputClosedError
    from nsqtools.policy.checks import unknown

    error = cause(error)
    if isinstance(error, OutputClosedError):
        raise error
    if debugging():
        from traceback import print_exception

        print_exception(error)
    verdict = unknown(words(error))
    click.echo(nagios(verdict), nl=False)
    return int(verdict.status)


def _refuse_idle(ctx: click.Context) -> None:
    """Raise UsageError for an option of --check without it: it looks as if that were watched."""
    from nsqtools.config import CheckOptions

    parts = ("check_", "serve", *(["timeout"] if ctx.params["serve"] else []))
    for name in CheckOptions.declared():
        if name not in parts and _typed(ctx, name):
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


class _Checked(NamedTuple):
    """A verdict, and what it was made of, unless there was no time for that."""

    verdict: Verdict
    snapshot: Snapshot | None


def run(where: ClusterOptions, asked: StatsOptions, check: CheckOptions) -> int:
    """Look at the cluster once, or twice for rates, and tell the result; the exit status.

    Raises OSError if --outfile cannot be written, ConfigError for a malformed address.
    """
    import asyncio

    async def checked() -> int:
        limits = limits_of(check)
        limit = check.timeout + (asked.interval if limits.need_rates else 0.0)
        try:
            async with asyncio.timeout(limit):
                found = await _look(where, asked, limits, check.timeout)
        except TimeoutError:
            from nsqtools.config.option import format_duration
            from nsqtools.policy.checks import unknown

            late = unknown(f"no result within --timeout {format_duration(check.timeout)}")
            _tell(_Checked(late, None), asked, check)
            _leave(late.status)
        _tell(found, asked, check)
        return int(found.verdict.status)

    return asyncio.run(checked())


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
    where: ClusterOptions, asked: StatsOptions, limits: Limits, limit: float
) -> _Checked:
    """A server that hangs costs its part of the time, so that the others are told of."""
    import asyncio

    from nsqtools.config import ClientConfig
    from nsqtools.engine.cluster import Cluster
    from nsqtools.net.tls import client_context
    from nsqtools.policy.checks import judge
    from nsqtools.policy.rates import Rates

    polls = 2 if limits.need_rates else 1
    cluster = Cluster(
        where.lookupd_http_address,
        where.nsqds,
        connect_timeout=where.http_client_connect_timeout,
        request_timeout=min(where.http_client_request_timeout, limit / (2.5 * polls)),
        tls=client_context(ClientConfig(tls_root_ca_file=where.tls_root_ca_file)),
        quiet=True,
    )
    rates = Rates()
    async with cluster:
        snapshot = await cluster.look(asked.topic or None, asked.channel or None)
        rows = rates.record(snapshot.samples(), now=snapshot.at)
        if polls > 1 and snapshot.stats:
            await asyncio.sleep(asked.interval)
            snapshot = await cluster.look(asked.topic or None, asked.channel or None)
            rows = rates.record(snapshot.samples(), now=snapshot.at)
    peers = peers_of(snapshot)
    verdict = judge(limits, rows, peers, topic=asked.topic, channel=asked.channel)
    return _Checked(verdict, snapshot)


def _tell(found: _Checked, asked: StatsOptions, check: CheckOptions) -> None:
    from nsqtools.cli.stats.results import RENDER, replace_file

    if check.format == "prometheus":
        text = _prometheus(found, asked)
    else:
        text = RENDER[check.format](found.verdict)
    if not check.outfile:
        click.echo(text, nl=False)
        return
    try:
        replace_file(check.outfile, text)
    except OSError as error:
        text = error.strerror or str(error)
        raise click.ClickException(f"--outfile {check.outfile}: {text.lower()}") from error


def _prometheus(found: _Checked, asked: StatsOptions) -> str:
    from nsqtools.cli.metrics import render
    from nsqtools.cli.stats.exporting import check_metrics, cluster_metrics

    metrics = check_metrics(found.verdict, topic=asked.topic, channel=asked.channel)
    if found.snapshot:
        metrics += cluster_metrics(found.snapshot)
    text, _ = render(metrics, process=False)
    return text.decode()


def _leave(status: int) -> NoReturn:
    """End now: a thread that hangs in a look-up of a name would be waited for."""
    sys.stdout.flush()
    os._exit(status)
