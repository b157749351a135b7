"""The load of a bench: its publisher and its consumer, both with measurements."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from nsqtools.cli.commands.bench.traffic import Traffic
from nsqtools.engine.handler import Handler
from nsqtools.errors import PublishError
from nsqtools.policy.pace import Pace
from nsqtools.tasks import together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.config.bench import BenchOptions
    from nsqtools.engine.handler import Batch
    from nsqtools.engine.producer import Producer

# A body begins with the number of its run and its time of sending (its due time if sent late), by
# the event loop's clock.
_HEAD = struct.Struct(">8sd")

# Maximum batches without an answer: per producer, as in pub; in total at a fixed rate, enough for a
# slow answer to delay no later batch; and their maximum bytes.
_MAX_UNANSWERED = 8
_MAX_UNANSWERED_RATED = 1000
_MAX_UNANSWERED_BYTES = 64 << 20

# Maximum delay of the event loop's timers: a batch no later than this is on time.
_TICK = 0.002


class Sender:
    """Publishes batches of equal bodies to a topic, several at a time.

    At a fixed rate, batch n is due n intervals after the start. The latency of a late batch counts
    from its due time, so a slow answer shows in every batch delayed by it. The first failure to
    publish is kept as ``error``, and sets ``stop``.
    """

    def __init__(
        self, topic: str, run: bytes, load: BenchOptions, rate: float, max_body_size: int
    ) -> None:
        self.traffic = Traffic("publish")
        self.error: PublishError | None = None
        self._topic = topic
        self._run = run
        self._size = load.size
        # MPUB counts bodies, and bytes of each body.
        max_batch = (max_body_size - 4) // (load.size + 4)
        self._batch = Pace(rate).burst(max(1, min(load.batch, max_batch)))
        self._interval = self._batch / rate if rate else 0.0
        self._turn = 0

    async def run(
        self,
        producers: Sequence[Producer],
        stop: asyncio.Event,
        *,
        count: float = inf,
        duration: float = inf,
    ) -> None:
        """Publish until the count, the duration or ``stop``, and wait for all answers."""
        self.traffic.began = asyncio.get_running_loop().time()
        self._left = count
        self._end = self.traffic.began + duration
        unanswered = _MAX_UNANSWERED_RATED // len(producers) if self._interval else _MAX_UNANSWERED
        max_lanes = _MAX_UNANSWERED_BYTES // (self._batch * self._size * len(producers))
        lanes = range(max(1, min(unanswered, max_lanes)))
        await together(*(self._lane(each, stop) for each in producers for _ in lanes))

    async def _lane(self, producer: Producer, stop: asyncio.Event) -> None:
        """Publish one batch after another, with the other lanes in turn."""
        loop = asyncio.get_running_loop()
        while self._left > 0 and not stop.is_set():
            due = self.traffic.began + self._turn * self._interval
            now = loop.time()
            if max(due, now) >= self._end:
                return
            number = int(min(self._batch, self._left))
            self._left -= number
            self._turn += 1
            if due > now:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await stop.wait()
                        return
                now = loop.time()
            is_late = self._interval and now - due > _TICK
            try:
                await self._publish(producer, number, due if is_late else now)
            except PublishError as error:
                self.error = self.error or error
                stop.set()

    async def _publish(self, producer: Producer, number: int, began: float) -> None:
        body = _HEAD.pack(self._run, began).ljust(self._size, b"x")
        await producer.publish(self._topic, [body] * number)
        now = asyncio.get_running_loop().time()
        self.traffic.add(number, number * len(body), now, now - began)


class Receiver(Handler):
    """Counts messages, and calls ``reached`` at ``goal`` messages.

    With the number of a ``run``, counts only messages of this run, and measures their latency.
    """

    def __init__(self, reached: Callable[[], object], run: bytes = b"") -> None:
        self.traffic = Traffic("end-to-end")
        self.goal = inf
        self._reached = reached
        self._run = run

    async def handle(self, batch: Batch) -> None:
        """Count a batch."""
        now = asyncio.get_running_loop().time()
        if self._run:
            self._measure(batch, now)
        else:
            self.traffic.add(len(batch), batch.size, now)
        self.check()

    def check(self) -> None:
        """Call ``reached`` if the goal is reached."""
        if self.traffic.messages >= self.goal:
            self._reached()

    def _measure(self, batch: Batch, now: float) -> None:
        # Messages published together have equal bodies.
        for body, number in Counter([message.body for message in batch]).items():
            if len(body) >= _HEAD.size and body.startswith(self._run):
                _, sent = _HEAD.unpack_from(body)
                self.traffic.add(number, number * len(body), now, now - sent)
