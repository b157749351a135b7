"""A run of ``nsqtools redrive``: its two sources, its end, and its report."""

from __future__ import annotations

import asyncio
import logging
import os
from math import ceil
from typing import TYPE_CHECKING

from nsqtools.cli.clusterproducer import ClusterProducer
from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.logs import report_end
from nsqtools.cli.output import print_rows
from nsqtools.cli.remotes import channel_depth, with_secret
from nsqtools.cli.service import Signals, consume, progress
from nsqtools.config.consuming import SourceOptions, StopOptions
from nsqtools.config.units import counted
from nsqtools.errors import ConfigError, NSQError
from nsqtools.names import is_ephemeral
from nsqtools.redrive.directory import DirectoryRun
from nsqtools.redrive.redriver import DEAD, Choice, Redriver
from nsqtools.redrive.redrivesink import RedriveSink, RunStart

if TYPE_CHECKING:
    from nsqtools.config.connection import ConsumerConfig
    from nsqtools.config.redrive import RedriveOptions, RedriveSourceOptions, RedriveStopOptions

log = logging.getLogger(__name__)

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
        self._choice = Choice(form.where, form.reason)
        self._work: DirectoryRun | RedriveSink

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
        is_late = not self._work.is_complete and (
            0 < self._stop.max_duration <= loop.time() - started
        )
        if is_late:
            log.error("--max-duration: the run ended before it had seen all messages")
        if not code and (self._redriver.refused or is_late):
            code = Exit.PARTIAL
        if code:
            raise Ended(code)

    def _line(self) -> str:
        return f"{self._redriver.count:,} published"

    async def _from_dir(self) -> int:
        """Publish from files; return the exit code."""
        run = self._work = DirectoryRun(
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
            for fault in run.faults:
                log.error("%s", fault)
            if run.unusable:
                log.error("%s without a usable message", counted(run.unusable, "line"))
        return signals.exit_code(Exit.PARTIAL if run.faults else Exit.DONE)

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
        start = RunStart(asyncio.get_running_loop().time())
        urls = self._stop.nsqd_http_address
        depth = await channel_depth(
            source, source.from_topic, source.channel, config, urls, may_create=True
        )
        sink = self._work = RedriveSink(self._redriver, self._choice, topic, depth, start=start)
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
            if sink.misdated:
                log.error(
                    "%s stayed with a time that nsqd's clock has not reached: it was set back, and "
                    "nobody knows whether they are older than this run",
                    counted(len(sink.misdated), "message"),
                )
        return Exit.PARTIAL if sink.misdated else Exit.DONE

    def _report(self) -> None:
        """Print the plan of a dry run, or report what was done."""
        redriver = self._redriver
        if redriver.dry:
            rows = sorted(redriver.published.items())
            cells = [[topic, reason or "-", str(count)] for (topic, reason), count in rows]
            print_rows(("topic", "reason", "messages"), cells)
        else:
            staying = self._work.staying
            verb = "stays" if staying == 1 else "stay"
            stay = f", {staying:,} {verb}" if staying else ""
            report_end(f"{counted(redriver.count, 'message')} published{stay}")
        if self._choice.condition:
            self._choice.condition.log_failures()
        if redriver.refused:
            log.error("refused: %s: %s", counted(redriver.refused, "message"), redriver.refusal)
