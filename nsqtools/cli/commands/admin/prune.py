"""``nsqtools topic prune`` and ``channel prune``: delete what nobody uses."""

from __future__ import annotations

import asyncio
import glob
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from nsqtools.cli.commands.admin.change import ask, check_terminal, entry, must_ask, servers_of
from nsqtools.cli.exits import Ended, Exit, one_line
from nsqtools.cli.output import print_json, print_rows
from nsqtools.cli.service import progress, until_signal
from nsqtools.clock import boot, uptime_ns, wall
from nsqtools.config.admin import PruneChannelOptions
from nsqtools.config.topicpattern import compiled
from nsqtools.config.units import counted, format_duration, nearest
from nsqtools.engine.administration import delete_idle, quiet_cluster
from nsqtools.engine.changes import Target
from nsqtools.engine.cluster import Cluster
from nsqtools.engine.doctor.snapshot import load
from nsqtools.errors import ConfigError, NSQError
from nsqtools.policy.idleness import Idleness
from nsqtools.policy.topics import matching
from nsqtools.tasks import run_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.config.admin import PruneOptions
    from nsqtools.engine.changes import Step
    from nsqtools.policy.idleness import ClusterSample, IdleVerdict
    from nsqtools.policy.rates import ChannelKey

log = logging.getLogger(__name__)

_INTERVAL = 10.0
"""Seconds between two looks of --watch-for."""

_MINUTE = 60.0
"""Seconds after which a restarted nsqlookupd knows all nsqds: they reconnect at their next PING,
every 15 s (nsqd/lookup.go)."""


def prune(options: PruneOptions) -> None:
    """Delete idle topics or channels on all servers, and print what was deleted or kept.

    Raises ConfigError if a snapshot cannot be used, or if there is no terminal to ask on. Raises
    UnreachableError if no server answers, and NSQError if no snapshot is old enough or no server
    has a given name. Raises Ended with PARTIAL if a server did not answer or a deletion failed,
    with FAILURE if the answer to the question is no or SIGTERM ends the watch.
    """
    pruning = Pruning(options)
    if must_ask(options):
        check_terminal(f"{pruning.kind} prune")
    if 0 < options.watch_for < _MINUTE and options.lookupd_http_address:
        log.warning(
            "--watch-for %s is less than a minute: an nsqlookupd that was just restarted may not "
            "know all nsqds yet",
            format_duration(options.watch_for),
        )
    run_loop(until_signal(pruning.observe()))
    if not pruning.is_decided:
        log.error("a signal ended the watch: nothing was done")
        raise Ended(Exit.FAILURE)
    pruning.confirm()
    try:
        if not options.dry_run:
            run_loop(until_signal(pruning.delete()))
    finally:
        pruning.print()
    if pruning.is_partial and not options.dry_run:
        raise Ended(Exit.PARTIAL)


class Pruning:
    """One run: what was seen of the cluster, and what became of each topic or channel.

    ``kind`` is ``topic`` or ``channel``.
    """

    def __init__(self, options: PruneOptions) -> None:
        self.kind = "channel" if isinstance(options, PruneChannelOptions) else "topic"
        self.is_decided = False
        """Whether enough was seen to decide what to delete."""
        self._options = options
        self._servers = servers_of(options)
        self._idleness = Idleness(channels=self.kind == "channel")
        self._verdicts: dict[ChannelKey, IdleVerdict] = {}
        self._chosen: list[ChannelKey] = []
        self._steps: dict[ChannelKey, list[Step]] = {}
        self._current: ChannelKey | None = None
        self._any_silent = False

    async def observe(self) -> None:
        """Compare the cluster with the snapshots, or watch it; then decide what to delete."""
        paths = sorted({path for each in self._options.snapshot for path in _files(each)})
        saved = {path: replace(load(path).cluster_sample(), nsqds={}) for path in paths}
        loop, servers = asyncio.get_running_loop(), self._servers
        end = loop.time() + self._options.watch_for
        watching = progress(
            lambda: f"watching for {format_duration(round(max(0.0, end - loop.time())))}",
            enabled=self._options.watch_for > 0,
        )
        async with (
            Cluster(
                servers.lookupds, servers.nsqds, timeout=servers.timeout, **servers.limits
            ) as cluster,
            watching,
        ):
            snapshot = await cluster.poll()
            now = replace(snapshot.cluster_sample(wall()), boot=boot(), uptime=uptime_ns() / 1e9)
            for at, path in self._history(saved, now):
                earlier = load(path).cluster_sample()
                if earlier.at != at:
                    raise NSQError(f"{path}: replaced while it was read; run the command again")
                self._idleness.record(now.comparable(earlier))
            while True:
                sample = snapshot.cluster_sample(wall())
                self._any_silent |= bool(sample.silent or sample.silent_lookupds)
                self._idleness.record(sample)
                left = end - loop.time()
                if left <= 0:
                    break
                await asyncio.sleep(min(left, _INTERVAL))
                snapshot = await cluster.look()
        self._decide(sample)

    def _history(
        self, saved: Mapping[str, ClusterSample], now: ClusterSample
    ) -> list[tuple[float, str]]:
        """The snapshots to compare with: first the youngest that is old enough, then younger ones.

        Each has the time of its saving by its host's clock, in seconds since the epoch, and its
        path. Those of unknown age count as younger by that time. Raises NSQError if none is old
        enough.
        """
        if not saved:
            return []
        idle = self._options.idle
        known: list[tuple[float, str, float, str]] = []
        unknown: list[tuple[float, str]] = []
        for path, sample in saved.items():
            if since := now.since(sample):
                known.append((*since, sample.at, path))
            else:
                unknown.append((sample.at, path))
        known.sort()
        if not known:
            raise NSQError(
                f"{min(saved)}: its age is unknown: it has the time of no nsqd that answers now, "
                "as version 0.3 saved none: save a new one with doctor --save, and prune when that "
                "is old enough"
            )
        age, nsqd, _, path = known[-1]
        if age < idle:
            clock = f"nsqd {nsqd}" if nsqd else "this host"
            raise NSQError(
                f"no snapshot is as old as --idle {format_duration(idle)}: the oldest, {path}, was "
                f"saved {format_duration(round(max(0.0, age)))} ago by the clock of {clock}; wait, "
                "or choose a shorter time"
            )
        number = sum(age < idle for age, *_ in known)
        _, _, at, path = known[number]
        younger = [(time, name) for _, _, time, name in known[:number]]
        younger += [each for each in unknown if each[0] > at]
        return [(at, path), *sorted(younger)]

    def _decide(self, sample: ClusterSample) -> None:
        """Choose what to delete. Raises NSQError if no server has a given topic or channel."""
        options = self._options
        known = {key for each in sample.nsqds.values() for key in each.counters}
        known |= self._idleness.verdicts.keys()
        topics = {topic for topic, _ in known}
        for name in options.topic:
            if name not in topics:
                raise NSQError(f"no nsqd has topic {name}{nearest(name, sorted(topics))}")
        if options.topic or options.topic_pattern:
            pattern = compiled(options.topic_pattern)
            topics = set(options.topic or matching(pattern, topics))
        channel = options.channel if isinstance(options, PruneChannelOptions) else ""
        channels = {name for topic, name in known if topic in topics and name}
        if channel and channel not in channels:
            raise NSQError(f"no nsqd has channel {channel}{nearest(channel, sorted(channels))}")
        self._verdicts = {
            key: verdict
            for key, verdict in self._idleness.verdicts.items()
            if key[0] in topics and channel in ("", key[1])
        }
        self._chosen = [
            key
            for key, verdict in self._verdicts.items()
            if verdict.is_idle(with_messages=options.with_messages)
        ]
        self.is_decided = True

    def confirm(self) -> None:
        """Ask for the number of topics or channels, if necessary. Raises Ended if it is wrong."""
        asks = must_ask(self._options) and self._chosen
        for key in self._chosen if asks else ():
            click.echo(one_line(f"{Target(*key)}: {self._verdicts[key].reason}"), err=True)
        if not (asks or self._options.dry_run):
            return
        number = len(self._chosen)
        what = counted(number, self.kind)
        held = counted(sum(self._verdicts[key].held for key in self._chosen), "message")
        click.echo(f"{what} would be deleted, with {held}", err=True)
        if asks:
            ask(f"Type {number} to delete {what}: ", str(number))

    async def delete(self) -> None:
        """Delete what was chosen and has not been used since."""
        servers = self._servers
        async with quiet_cluster(servers) as cluster:
            for key in self._chosen:
                self._current = key
                self._verdicts[key], self._steps[key] = await delete_idle(
                    servers,
                    Target(*key),
                    self._idleness,
                    cluster,
                    with_messages=self._options.with_messages,
                )
                for step in self._steps[key]:
                    if step.error:
                        log.error("%s: %s %s", Target(*key), step.server, step.error)

    @property
    def is_partial(self) -> bool:
        """Whether something was left because a server did not answer, or a deletion failed."""
        silent = any(each.state == "silent" for each in self._verdicts.values())
        failed = any(step.error for steps in self._steps.values() for step in steps)
        return silent or failed or self._any_silent or len(self._steps) < len(self._chosen)

    def print(self) -> None:
        """Print a line or a JSON entry for each topic or channel deleted or kept.

        Those in use are left out, unless they were chosen; --dry-run prints all.
        """
        shown = [
            key
            for key, verdict in self._verdicts.items()
            if self._options.dry_run or key in self._chosen or verdict.state != "used"
        ]
        columns = ("topic", "channel") if self.kind == "channel" else ("topic",)
        rows = [(key, *self._outcome(key)) for key in shown]
        if not self._options.json:
            cells = [[*key[: len(columns)], *outcome] for key, *outcome in rows]
            print_rows([*columns, "result", "reason"], cells)
            return
        entries = [
            {
                **dict(zip(columns, key, strict=False)),
                "result": result,
                "state": self._verdicts[key].state,
                "reason": reason,
                "messages": self._verdicts[key].held,
                "servers": [entry(step, planned=False) for step in self._steps.get(key, ())],
            }
            for key, result, reason in rows
        ]
        names = {"kind": self.kind, "action": "prune", "dry_run": self._options.dry_run}
        print_json({**names, f"{self.kind}s": entries})

    def _outcome(self, key: ChannelKey) -> tuple[str, str]:
        """What became of a topic or channel, and why."""
        steps, reason = self._steps.get(key), self._verdicts[key].reason
        if key in self._chosen and steps is None:
            if self._options.dry_run:
                return "planned", reason
            if key == self._current:
                return "failed", "interrupted: some servers may have deleted it"
            return "kept", "interrupted"
        if errors := [f"{step.server} {step.error}" for step in steps or () if step.error]:
            return "failed", "; ".join(errors)
        return ("deleted" if steps else "kept"), reason


def _files(pattern: str) -> list[str]:
    """The files of this name or pattern; raises ConfigError if a pattern matches none."""
    if not glob.has_magic(pattern):
        return [pattern]
    if found := glob.glob(pattern):
        return found
    raise ConfigError(f"--snapshot {pattern}: no such file", options=("snapshot",))
