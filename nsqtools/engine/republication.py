"""Publishes chosen messages again at a rate, and keeps a log of what went where."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.engine.producer import Producer
from nsqtools.errors import NSQError
from nsqtools.policy.pace import Pace
from nsqtools.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from nsqtools.config.connection import ProducerConfig
    from nsqtools.names import Address

_MAX_ENTRIES = 2000
_MAX_JOBS = 50
_MAX_RUNNING = 5


class PublishedEntry(NamedTuple):
    """A message at a time in seconds since the epoch; ``error`` is empty if it was published."""

    at: float
    origin: str
    size: int
    error: str


class Republication:
    """Messages on their way to ``topic``; each has its ``origin``, such as a file and an offset.

    The form that asked for them has its own ``nonce``, so that it can be sent only once.
    """

    def __init__(
        self, topic: str, messages: Sequence[tuple[str, bytes]], rate: float, nonce: str
    ) -> None:
        self.topic = topic
        self.nonce = nonce
        self.rate = rate
        self.begun = time.time()
        self.total = len(messages)
        self.published = 0
        self.failed = 0
        self.is_over = False
        self.log: deque[PublishedEntry] = deque(maxlen=_MAX_ENTRIES)
        self._messages = list(messages)

    async def run(self, nsqds: Sequence[Address], config: ProducerConfig) -> None:
        """Publish all messages, one after another; those that fail are in the log."""
        loop, pace = asyncio.get_running_loop(), Pace(self.rate)
        try:
            async with Producer(nsqds, config) as producer:
                while self._messages:
                    origin, body = self._messages.pop(0)
                    await asyncio.sleep(pace.delay(1, now=loop.time()))
                    try:
                        await producer.publish(self.topic, [body])
                    except NSQError as error:
                        self._note(origin, body, str(error))
                    else:
                        self._note(origin, body, "")
        except NSQError as error:
            for origin, body in self._messages:
                self._note(origin, body, str(error))
            self._messages.clear()
        finally:
            self.is_over = True

    def _note(self, origin: str, body: bytes, error: str) -> None:
        self.log.append(PublishedEntry(time.time(), origin, len(body), error))
        self.published += not error
        self.failed += bool(error)


class Republications:
    """The last jobs, and those that run; ``on_error`` is called with the error of a bug."""

    def __init__(self, on_error: Callable[[BaseException], object]) -> None:
        self.jobs: deque[Republication] = deque(maxlen=_MAX_JOBS)
        self._tasks = Tasks(on_error)

    @property
    def is_full(self) -> bool:
        """Whether no further job may begin until one has ended."""
        return len(self._tasks) >= _MAX_RUNNING

    def begin(self, job: Republication, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a job in the background."""
        self.jobs.appendleft(job)
        self._tasks.begin(work)

    async def close(self) -> None:
        """End all jobs; the messages that are left are not published."""
        await self._tasks.close()
