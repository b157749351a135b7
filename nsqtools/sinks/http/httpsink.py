"""The sink for HTTP endpoints; it finishes messages once an endpoint accepts them.

A fixed number of tasks deliver concurrently; batches with waiting messages are held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING

from nsqtools.engine.handler import TOO_MANY
from nsqtools.errors import OutputError
from nsqtools.policy.verdicts import Verdict
from nsqtools.sinks.holding import Held, HoldingHandler
from nsqtools.sinks.http.courier import NOT_TRIED, UNFIT
from nsqtools.sinks.http.post import Outcome
from nsqtools.sinks.repeats import Repeats
from nsqtools.tasks import Tasks, is_cancelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nsqtools.engine.handler import Batch, Message
    from nsqtools.metrics import Metric
    from nsqtools.policy.pace import Pace
    from nsqtools.sinks.deadletters import DeadLetters
    from nsqtools.sinks.http.courier import Courier
    from nsqtools.sinks.http.post import Parcel

log = logging.getLogger(__name__)

_GIVEN_UP = Outcome(Verdict.DROP, reason=TOO_MANY)
_NO_ENDPOINT = Outcome(Verdict.RETRY, delay=0)
"""No endpoint was available until the topic was drained."""


class HttpSink(HoldingHandler):
    """A handler for delivery with ``workers`` concurrent requests.

    With ``size`` over 1, up to as many messages of a topic share a request; fewer after ``wait``
    seconds or if nsqd has no more. ``share`` is the fraction of messages to deliver; the others are
    finished at once. Only the id of a message decides, so that every delivery decides the same.
    """

    def __init__(
        self,
        courier: Courier,
        dead_letters: DeadLetters,
        pace: Pace,
        *,
        workers: int,
        size: int,
        wait: float,
        share: float,
    ) -> None:
        self._courier = courier
        self._dead_letters = dead_letters
        self._pace = pace
        self._workers = workers
        self._size = size
        self._wait = wait
        self._share = share
        self._tasks = Tasks(self.fail)
        self._topics: dict[str, _HeldTopic] = {}
        self._done: Parcel = []
        self._queue: deque[Parcel] = deque()
        self._doomed: deque[Parcel] = deque()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._repeats = Repeats(log)

    async def open(self) -> None:
        """Start the workers; raises OutputError if dead letters cannot be written."""
        await super().open()
        await self._dead_letters.open()
        for _ in range(self._workers):
            self._tasks.begin(self._work())

    async def join(self, topic: str) -> None:
        """Prepare for a topic."""
        self._topics.setdefault(topic, _HeldTopic()).leaving.clear()

    async def handle(self, batch: Batch) -> None:
        """Accept a batch; its messages are settled as they are delivered."""
        topic = self._topics[batch.topic]
        topic.held.add(batch)
        messages: Sequence[Message] = batch
        if self._share < 1:
            chances = [(_place(message.id) < self._share, message) for message in batch]
            messages = [message for chosen, message in chances if chosen]
            topic.held.finish(batch, [message for chosen, message in chances if not chosen])
        self._gather(topic, [(batch, message) for message in messages], now=batch.starved)

    async def gave_up(self, batch: Batch) -> None:
        """Accept a batch; it is settled once it is a dead letter, or its loss was logged."""
        self._topics[batch.topic].held.add(batch)
        self._doomed.append([(batch, message) for message in batch])
        self._wake(1)

    async def drain(self, topic: str) -> None:
        """Wait for the topic's current requests, and give queued messages back.

        An incomplete request is still sent if a worker is free.
        """
        if work := self._topics.get(topic):
            work.leaving.set()
            self._return_waiting(topic, work)
            self._courier.look()
            await work.held.settled()
            self._topics.pop(topic, None)

    def _return_waiting(self, topic: str, work: _HeldTopic) -> None:
        queue, self._queue = self._queue, deque()
        if self._resting:
            self._gather(work, [], now=True)
        else:
            work.stop_timer()
            queue.append(work.waiting)
            work.waiting = []
        for parcel in filter(None, queue):
            if parcel[0][0].topic == topic:
                self._give_back(parcel, NOT_TRIED)
            else:
                self._queue.append(parcel)

    def flush(self) -> None:
        """Send incomplete requests."""
        for topic in self._topics.values():
            self._gather(topic, [], now=True)

    async def close(self, *, at_once: bool = False) -> None:
        """Stop the workers and close the connections."""
        for topic in self._topics.values():
            topic.stop_timer()
        await self._tasks.close()
        self._repeats.close()
        await self._courier.close()
        await self._dead_letters.close()

    def metrics(self) -> Iterable[Metric]:
        """Return counts, latencies and states of the endpoints, for Prometheus."""
        return self._courier.metrics()

    def _gather(self, topic: _HeldTopic, items: Parcel, *, now: bool) -> None:
        """Queue full requests or, with ``now``, all messages."""
        if self._size == 1:
            parcels = [[item] for item in items]
        else:
            waiting = topic.waiting + items
            end = len(waiting) if now else len(waiting) - len(waiting) % self._size
            parcels = [waiting[at : at + self._size] for at in range(0, end, self._size)]
            topic.waiting = waiting[end:]
            if parcels or not topic.waiting:
                topic.stop_timer()
            if topic.waiting and topic.timer is None:
                gather = partial(self._gather, topic, [], now=True)
                topic.timer = self._loop.call_later(self._wait, gather)
        self._queue += parcels
        self._wake(len(parcels))

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._resting))):
            self._resting.popleft().set_result(None)

    async def _work(self) -> None:
        while True:
            while not (self._queue or self._doomed):
                rest = self._loop.create_future()
                self._resting.append(rest)
                await rest
            if self._doomed:
                if sound := self._sound(self._doomed.popleft()):
                    await self._drop(sound, _GIVEN_UP)
            else:
                await self._deliver(self._queue.popleft())

    def _sound(self, parcel: Parcel) -> Parcel:
        """Return the messages not taken back by nsqd."""
        for batch, _ in parcel:
            if batch.is_lost():
                break
        else:
            return parcel
        lost = set()
        for held, batch, messages in self._by_batch(parcel):
            if held.forget_lost(batch, messages):
                lost.add(batch)
        return [item for item in parcel if item[0] not in lost]

    async def _deliver(self, parcel: Parcel) -> None:
        """Deliver the messages not taken back by nsqd, and settle them."""
        topic = self._topics[parcel[0][0].topic]
        delay = self._pace.delay(1, now=self._loop.time())
        if delay and not await topic.stays(delay):
            self._give_back(parcel, NOT_TRIED)
            return
        if not (sound := self._sound(parcel)):
            return
        outcome = await self._try(sound, topic)
        if outcome.verdict is Verdict.DONE:
            self._finish(sound)
        elif outcome is NOT_TRIED:
            if len(rest := self._sound(sound)) == len(sound):
                self._give_back(sound, _NO_ENDPOINT)
            elif rest:
                await self._deliver(rest)
        elif len(sound) > 1 and outcome.may_blame_one:
            self._queue.extendleft([item] for item in reversed(sound))
            self._wake(len(sound))
        elif outcome.verdict is Verdict.DROP:
            await self._drop(sound, outcome)
        elif outcome is UNFIT:
            await self._refuse(sound)
        else:
            self._give_back(sound, outcome)

    async def _refuse(self, parcel: Parcel) -> None:
        """Write unsendable messages as dead letters, or requeue them."""
        if not self._dead_letters.is_lossy:
            await self._drop(parcel, UNFIT)
            return
        for _, batch, messages in self._by_batch(parcel):
            event = f"requeued, impossible to deliver: {UNFIT.reason}"
            self._repeats.tell(logging.WARNING, batch.topic, len(messages), event)
        self._give_back(parcel, UNFIT)

    async def _try(self, parcel: Parcel, topic: _HeldTopic) -> Outcome:
        try:
            return await self._courier.deliver(parcel, topic.is_staying)
        except OutputError as error:
            self.fail(error)
            return NOT_TRIED
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled():
                raise
            # a fault in this program: the worker continues, and the messages are delivered again
            self._tell(parcel, error)
            return Outcome(Verdict.RETRY, reason=type(error).__name__)

    async def _drop(self, parcel: Parcel, outcome: Outcome) -> None:
        """Write dead letters and finish them; the others are requeued."""
        for batch, items in groupby(parcel, key=lambda item: item[0]):
            part = list(items)
            messages = [message for _, message in part]
            try:
                await self._dead_letters.write(batch, messages, outcome.reason)
            except (Exception, asyncio.CancelledError) as error:
                if is_cancelled():
                    raise
                self._tell(part, error)
                self._give_back(part, outcome)
            else:
                if self._dead_letters.is_lossy:
                    self.lost += len(messages)
                else:
                    self.dead_lettered += len(messages)
                self._finish(part)

    def _tell(self, parcel: Parcel, error: BaseException) -> None:
        """Log why messages are requeued; for an internal error, its type too."""
        text = str(error)
        if not isinstance(error, OutputError):
            log.debug("internal error", exc_info=error)
            text = f"internal error: {type(error).__name__}: {error}"
        topic = parcel[0][0].topic
        self._repeats.tell(logging.ERROR, topic, len(parcel), f"requeued: {text}")

    def _finish(self, parcel: Parcel) -> None:
        """Finish messages at the end of this turn of the loop, together with others."""
        if not self._done:
            self._loop.call_soon(self._finish_done)
        self._done += parcel

    def _finish_done(self) -> None:
        done, self._done = self._done, []
        for held, batch, messages in self._by_batch(done):
            held.finish(batch, messages)

    def _give_back(self, parcel: Parcel, outcome: Outcome) -> None:
        """Requeue messages, with backoff if they were tried."""
        for held, batch, messages in self._by_batch(parcel):
            if outcome is NOT_TRIED:
                held.give_back(batch, messages)
            else:
                held.requeue(batch, messages, delay=outcome.delay)

    def _by_batch(self, parcel: Parcel) -> Iterator[tuple[Held, Batch, list[Message]]]:
        found: dict[Batch, list[Message]] = {}
        for batch, message in parcel:
            found.setdefault(batch, []).append(message)
        for batch, messages in found.items():
            yield self._topics[batch.topic].held, batch, messages


def _place(message_id: bytes) -> float:
    """Return the place of an id among all ids, spread evenly from 0 to below 1."""
    return int.from_bytes(blake2b(message_id, digest_size=6).digest()) / 2**48


class _HeldTopic:
    """The held batches of a topic; ``waiting`` has messages of an incomplete request."""

    def __init__(self) -> None:
        self.waiting: Parcel = []
        self.held = Held()
        self.timer: asyncio.TimerHandle | None = None
        self.leaving = asyncio.Event()

    def stop_timer(self) -> None:
        """Stop the timer of the incomplete request, now queued or dropped."""
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def is_staying(self) -> bool:
        """Whether there is time to wait for an endpoint."""
        return not self.leaving.is_set()

    async def stays(self, seconds: float) -> bool:
        """Wait this long; return False at once if the topic is leaving."""
        try:
            async with asyncio.timeout(seconds):
                await self.leaving.wait()
        except TimeoutError:
            return True
        return False
