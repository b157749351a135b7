"""A run of ``nsqtools redrive``: its two sources, its end, and its report."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from math import ceil
from typing import TYPE_CHECKING

from nsqtools.cli.clusterproducer import ClusterProducer
from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.logs import report_end
from nsqtools.cli.output import print_rows
from nsqtools.cli.remotes import fixed_nsqds, with_secret
from nsqtools.cli.service import Signals, consume, progress
from nsqtools.config.consuming import SourceOptions, StopOptions
from nsqtools.config.units import counted
from nsqtools.engine.connector import Subscription
from nsqtools.engine.lookup import Backlog
from nsqtools.errors import ConfigError, NSQError
from nsqtools.names import is_ephemeral
from nsqtools.records.bodies.expressions import condition
from nsqtools.redrive.directory import DirectoryRun
from nsqtools.redrive.redriver import DEAD, Choice, Redriver
from nsqtools.redrive.redrivesink import RedriveSink

if TYPE_CHECKING:
    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.config.redrive import RedriveOptions, RedriveSourceOptions, RedriveStopOptions

log = logging.getLogger(__name__)

_SKEW = 5.0
"""Maximum difference in seconds between clocks without a warning, as in doctor."""
_AHEAD = 10.0
"""With --rate, messages are received at most this many seconds before their publishing is due."""


class RedriveRun:
    """One run; raises ConfigError for options that cannot be used."""

    def __init__(
        self,
        source: RedriveSourceOptions,
        form: RedriveOptions,
        stop: RedriveStopOptions,
        config: ConsumerConfig,
    ) -> None:
        if source.from_dir and not os.path.isdir(source.from_dir):
            raise ConfigError(f"--from-dir {source.from_dir}: is not a directory")
        self._source = source
        self._form = form
        self._stop = stop
        self._config = with_secret(config)
        self._choice = Choice(condition(form.where) if form.where else None, form.reason)
        self._faulty = 0
        self._is_complete = False
        self._staying = 0

    async def run(self) -> None:
        """Publish the dead letters; raises Ended for every exit code but 0.

        Raises LockedError if another run has the directory, UnreachableError if no nsqd can be
        reached, and OutputError.
        """
        form = self._form
        producer = ClusterProducer(self._source, self._config)
        self._redriver = Redriver(producer, rate=form.rate, limit=form.limit, dry=form.dry_run)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with progress(self._line):
                code = await (self._from_dir() if self._source.from_dir else self._from_topic())
        except NSQError:
            if self._redriver.count:
                self._report()
            raise
        finally:
            await producer.close()
        self._report()
        is_late = not self._is_complete and 0 < self._stop.max_duration <= loop.time() - started
        if is_late:
            log.error("--max-duration: the run ended before it had seen all messages")
        if not code and (self._faulty or self._redriver.refused or is_late):
            code = Exit.PARTIAL
        if code:
            raise Ended(code)

    def _line(self) -> str:
        return f"{self._redriver.count:,} published"

    async def _from_dir(self) -> int:
        """Publish from files; return the exit code."""
        run = DirectoryRun(
            self._source.from_dir,
            self._redriver,
            self._choice,
            topic=self._form.topic,
            max_msg_size=self._config.max_msg_size,
        )
        loop = asyncio.get_running_loop()
        work = loop.create_task(run.run())
        signals = Signals(
            self._redriver.stopping.set,
            work.cancel,
            "messages that nsqd has not confirmed are published again by the next run",
        )
        most = self._stop.max_duration
        timer = loop.call_later(most, self._redriver.stopping.set) if most else None
        try:
            await work
        except asyncio.CancelledError:
            if not signals.seen:
                raise
        finally:
            if timer:
                timer.cancel()
            self._faulty, self._staying = len(run.faults), run.staying
            self._is_complete = run.is_complete
            for fault in run.faults:
                log.error("%s", fault)
            if run.unusable:
                log.error("%s without a usable message", counted(run.unusable, "line"))
        return signals.exit_code(Exit.DONE)

    async def _from_topic(self) -> int:
        """Publish from a topic; return 0, or raise Ended as ``consume`` does."""
        source, form, config = self._source, self._form, self._config
        topic = form.topic or source.from_topic.removesuffix(DEAD)
        if topic == source.from_topic:
            reason = "messages would come back" if form.topic else "its name does not end in .dead"
            raise ConfigError(f"--from-topic {topic}: {reason}: give --topic another topic")
        if is_ephemeral(source.channel):
            raise ConfigError(
                f"--channel {source.channel}: nsqd deletes an ephemeral channel, with the messages "
                "to stay in it, when redrive ends: choose a name without #ephemeral"
            )
        if config.sample_rate:
            raise ConfigError("--sample-rate would make nsqd drop messages of the channel")
        began = time.time_ns()
        subscription = Subscription(
            topic=source.from_topic,
            channel=source.channel,
            nsqds=fixed_nsqds(source),
            lookupds=source.lookupd_http_address,
        )
        depth = Backlog(subscription, config, self._stop.nsqd_http_address)
        await _require(depth, source)
        for url, skew in depth.skews.items():
            if abs(skew) > _SKEW:
                log.warning(
                    "nsqd %s: its clock is %.0f s %s this host's: messages published about the "
                    "time of the start may be taken for older or newer ones",
                    *(url, abs(skew), "ahead of" if skew > 0 else "behind"),
                )
        sink = RedriveSink(self._redriver, self._choice, topic, depth, began=began)
        in_flight = config.max_in_flight
        if form.rate:
            in_flight = min(in_flight, max(1, ceil(form.rate * _AHEAD)))
        try:
            await consume(
                SourceOptions(
                    topic=(source.from_topic,),
                    channel=source.channel,
                    nsqd_tcp_address=source.nsqd_tcp_address,
                    lookupd_http_address=source.lookupd_http_address,
                ),
                source.channel,
                config.with_values(max_in_flight=in_flight, max_attempts=0),
                StopOptions(max_duration=self._stop.max_duration),
                sink,
                patient=False,
            )
        except Ended as ended:
            return ended.exit_code
        finally:
            self._staying, self._is_complete = sink.staying, sink.is_complete
        return Exit.DONE

    def _report(self) -> None:
        """Print the plan of a dry run, or report what was done."""
        redriver, choice = self._redriver, self._choice
        if redriver.dry:
            rows = sorted(redriver.published.items())
            cells = [[topic, reason or "-", str(count)] for (topic, reason), count in rows]
            print_rows(("topic", "reason", "messages"), cells)
        else:
            verb = "stays" if self._staying == 1 else "stay"
            stay = f", {self._staying:,} {verb}" if self._staying else ""
            report_end(f"{counted(redriver.count, 'message')} published{stay}")
        if choice.failed:
            log.warning(
                "not chosen, because --where fails for them: %s: %s",
                counted(choice.failed, "message"),
                choice.error,
            )
        if redriver.refused:
            log.error("refused: %s: %s", counted(redriver.refused, "message"), redriver.refusal)


async def _require(depth: Backlog, source: RedriveSourceOptions) -> None:
    """Raise NSQError if no message can come, before consuming creates the topic or the channel."""
    topic, name = source.from_topic, source.channel
    found, is_complete = await depth.known()
    channels = [channel for each in found for channel in each.channels]
    names = {each.name for each in channels}
    if is_complete and not found:
        raise NSQError(f"no nsqd has topic {topic}: check the name")
    if is_complete and names and name not in names:
        others = " ".join(sorted(names))
        raise NSQError(
            f"topic {topic} has no channel {name}, so its messages are in other channels: choose "
            f"one with --channel: {others}"
        )
    if any(each.paused for each in found):
        raise NSQError(f"topic {topic} is paused, and delivers nothing: unpause it")
    if any(each.paused for each in channels if each.name == name):
        raise NSQError(f"{topic}/{name} is paused, and delivers nothing: unpause it")
