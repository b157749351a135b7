"""One run of a bench, from the topic to the exit code."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import click

from nsqtools.cli.commands.bench.load import Receiver, Sender
from nsqtools.cli.commands.bench.topic import BenchTopic
from nsqtools.cli.commands.bench.traffic import text
from nsqtools.cli.exits import Ended, Exit
from nsqtools.cli.output import print_json
from nsqtools.cli.service import Signals, progress, tune_memory
from nsqtools.config.units import counted
from nsqtools.engine.connector import Subscription
from nsqtools.engine.consumer import Consumer
from nsqtools.engine.producer import Producer
from nsqtools.tasks import together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nsqtools.cli.commands.bench.traffic import Traffic
    from nsqtools.config.bench import BenchOptions, BenchServerOptions
    from nsqtools.config.connection import ConsumerConfig, ProducerConfig

log = logging.getLogger(__name__)

_DURATION = 10.0

# Seconds without an arrival until the remaining messages count as missing.
_SILENCE = 5.0


class LoadShape(NamedTuple):
    """The numbers of producers and consumers, and messages per second, 0 for no limit.

    Without producers, the topic is filled before it is consumed.
    """

    rate: float
    producers: int
    consumers: int


class BenchRun:
    """One run of a bench; ``config`` is None for a bench without consumers."""

    def __init__(
        self,
        servers: BenchServerOptions,
        load: BenchOptions,
        target: ProducerConfig,
        config: ConsumerConfig | None,
    ) -> None:
        self._servers = servers
        self._load = load
        self._shape = LoadShape(*(getattr(load, each, 0) for each in LoadShape._fields))
        self._target = target
        self._config = config
        self._measured: dict[str, Traffic] = {}
        self._stop = asyncio.Event()
        self._code = Exit.DONE

    async def run(self) -> None:
        """Measure and print the results. After a signal, the results so far are printed.

        Raises Ended for every exit code but 0, and the errors of BenchTopic, Producer and Consumer.
        """
        work = asyncio.get_running_loop().create_task(self._work())

        def interrupted() -> None:
            self._stop.set()
            if not self._measured:
                work.cancel()

        signals = Signals(interrupted, work.cancel, "the topic may be left")
        tune_memory()
        try:
            await work
        except asyncio.CancelledError:
            if not signals.seen:
                raise
        if self._measured:
            self._print()
        if code := signals.exit_code(self._code):
            raise Ended(code)

    def _print(self) -> None:
        load, measured = self._load, self._measured
        about = {"size": load.size, "batch": load.batch, **self._shape._asdict()}
        if load.json:
            print_json({**about, **{done: each.facts() for done, each in measured.items()}})
        else:
            click.echo(text(measured), nl=False)

    async def _work(self) -> None:
        """Measure; returns when the topic is deleted."""
        async with BenchTopic(self._servers, self._load, self._target) as place:
            limit = self._target.max_body_size
            sender = Sender(place.topic, place.run, self._load, self._shape.rate, limit)
            receiver = Receiver(self._stop.set, place.run if self._shape.producers else b"")
            async with (
                progress(lambda: self._progress(sender)),
                self._consumers(place, receiver) as consumers,
            ):
                if self._shape.producers:
                    await self._publish(place, sender, receiver)
                else:
                    await self._consume(place, sender, receiver, consumers)
        if sender.error:
            log.error("%s", sender.error)
            self._code = Exit.FAILURE
        if place.is_left:
            self._code = self._code or Exit.PARTIAL

    def _measure(self, **directions: Traffic) -> None:
        """Begin to measure these directions."""
        self._measured = directions
        for each in directions.values():
            each.began = asyncio.get_running_loop().time()

    def _progress(self, sender: Sender) -> str:
        shown = self._measured or {"published, not measured": sender.traffic}
        return "; ".join(traffic.line(done) for done, traffic in shown.items())

    async def _publish(self, place: BenchTopic, sender: Sender, receiver: Receiver) -> None:
        """Measure publishing and, with consumers, the arrival of all published messages."""
        load = self._load
        async with self._producers(place) as producers:
            received = {"received": receiver.traffic} if self._config else {}
            self._measure(published=sender.traffic, **received)
            duration = load.duration or (inf if load.count else _DURATION)
            await sender.run(producers, self._stop, count=load.count or inf, duration=duration)
        if self._config:
            await self._arrival(receiver, self._copies(place, sender))

    async def _consume(
        self, place: BenchTopic, sender: Sender, receiver: Receiver, consumers: Sequence[Consumer]
    ) -> None:
        """Fill the topic, and measure consuming."""
        load, config = self._load, self._config
        assert config
        async with self._producers(place) as producers:
            await sender.run(producers, self._stop, count=load.count)
        if sender.error:
            raise sender.error
        self._measure(received=receiver.traffic)
        for each in consumers:
            each.set_max_in_flight(config.max_in_flight)
        await self._arrival(receiver, self._copies(place, sender), load.duration or inf)

    def _copies(self, place: BenchTopic, sender: Sender) -> int:
        """The number of messages accepted by all nsqds together."""
        times = len(place.nsqds) if self._target.mode == "all" else 1
        return sender.traffic.messages * times

    async def _arrival(self, receiver: Receiver, goal: int, within: float = inf) -> None:
        """Wait until ``goal`` messages have arrived, at most ``within`` seconds.

        If no message arrives for a while, logs an error and sets the exit code PARTIAL.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        receiver.goal = goal
        receiver.check()
        while not self._stop.is_set() and loop.time() < until:
            before = receiver.traffic.messages
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, loop.time() + _SILENCE)):
                    await self._stop.wait()
                    return
            if receiver.traffic.messages == before and loop.time() < until:
                lost = counted(goal - before, "message")
                log.error("%s did not arrive: the last message arrived %g s ago", lost, _SILENCE)
                self._code = Exit.PARTIAL
                return

    @asynccontextmanager
    async def _producers(self, place: BenchTopic) -> AsyncIterator[Sequence[Producer]]:
        """Connected producers; one if the topic is only filled."""
        async with AsyncExitStack() as stack:
            made = [Producer(place.nsqds, self._target) for _ in range(self._shape.producers or 1)]
            yield [await stack.enter_async_context(each) for each in made]

    @asynccontextmanager
    async def _consumers(
        self, place: BenchTopic, receiver: Receiver
    ) -> AsyncIterator[Sequence[Consumer]]:
        """Connected consumers; in a bench without producers, they receive nothing yet."""
        if self._config is None:
            yield ()
            return
        config = self._config
        if not self._shape.producers:
            config = config.with_values(max_in_flight=0)
        subscription = Subscription(topic=place.topic, channel=place.channel, nsqds=place.nsqds)
        started = [asyncio.Event() for _ in range(self._shape.consumers)]
        consumers = [Consumer(subscription, receiver, config, on_started=e.set) for e in started]
        async with AsyncExitStack() as stack:
            for each in consumers:
                await stack.enter_async_context(each)
            await together(*(each.wait() for each in started))
            yield consumers
