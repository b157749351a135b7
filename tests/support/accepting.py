"""What the acceptance suite of sinks needs to know of each: the sink, and its destination."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from abc import ABC, abstractmethod
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nsqtools.errors import NSQError, PublishError
from nsqtools.names import Address
from nsqtools.policy.stopping import Left
from nsqtools.policy.trim import Marks, Trim
from nsqtools.records.compression import plain_chunks
from nsqtools.records.forms import make_writer
from nsqtools.records.layout import Layout
from nsqtools.redrive.redriver import Choice, Redriver
from nsqtools.redrive.redrivesink import RedriveSink
from nsqtools.sinks.files.filesink import FileSink
from nsqtools.sinks.relay.filter import Filter
from nsqtools.sinks.relay.relaysink import RelaySink
from nsqtools.sinks.stdout import StreamSink
from nsqtools.sinks.trimsink import TrimSink
from tests.support.archiving import HOUR, START, Settled, batch, make_rules, message
from tests.support.clock import elapse
from tests.support.delivering import Answer, Delivering, Letters
from tests.support.faults import broken
from tests.support.sinking import InLoop, make_archives

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from nsqtools.clock import ServerClock
    from nsqtools.engine.handler import Batch, Handler, Message

SLOW = 5.0
"""Seconds after which a slow destination answers."""


class Checked(Settled):
    """Fates of messages, each of which is settled once, and finished only when it has arrived."""

    def __init__(self, destination: Destination) -> None:
        super().__init__()
        self._destination = destination
        self._known: Counter[int] = Counter()

    def finish(self, messages: Sequence[Message]) -> None:
        super().finish(messages)
        self._once(messages)
        lost = [message.body for message in messages]
        for body in (*self._destination.arrived(), *self._destination.letters.bodies):
            if body in lost:
                lost.remove(body)
        assert not lost or self._destination.letters.is_lossy, f"finished, but not there: {lost}"

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        super().requeue(messages, delay=delay, backoff=backoff)
        self._once(messages)

    def forget(self, messages: Sequence[Message]) -> None:
        super().forget(messages)
        self._once(messages)

    def _once(self, messages: Sequence[Message]) -> None:
        self._known.update(map(id, messages))
        assert max(self._known.values(), default=1) == 1, "settled twice"


class Destination(ABC):
    """A sink and where its messages go. ``folder`` is the test's own."""

    recovers = True
    """Whether the run goes on after a failure."""
    buries = False
    """Whether what is given up is written as a dead letter, if there is a place for these."""
    rejects = False
    """Whether the destination may refuse one message and accept others: bodies of b"bad"."""

    is_ordered = True
    """Whether messages arrive in the order in which they came."""
    topics: tuple[str, ...] = ("events", "other")
    """What the sink may join."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.letters = Letters()
        self.is_closed = False
        self.settled = Checked(self)
        self.given: list[Batch] = []
        self._numbers = itertools.count(1)
        self.sink: Handler = self.make()

    @abstractmethod
    def make(self) -> Handler:
        """Return the sink, which is not open."""

    @abstractmethod
    def arrived(self) -> Sequence[bytes]:
        """The bodies that are safe at the destination."""

    @abstractmethod
    def refuse(self, refuses: bool) -> None:
        """From now on each attempt fails, or succeeds again."""

    @abstractmethod
    def slow(self, seconds: float) -> None:
        """From now on each attempt takes so long."""

    def release(self) -> None:
        """Give back what the destination has."""

    async def close(self, *, at_once: bool = False) -> None:
        """Close the sink."""
        self.is_closed = True
        await self.sink.close(at_once=at_once)

    async def give(self, *bodies: bytes, **more: Any) -> Batch:
        """Hand a batch over as a Consumer does, which settles what the sink leaves."""
        return await self._hand_over(self.sink.handle, bodies, more)

    async def give_up(self, *bodies: bytes, **more: Any) -> Batch:
        """Hand over what was delivered too often."""
        return await self._hand_over(self.sink.gave_up, bodies, more)

    async def _hand_over(
        self,
        handle: Callable[[Batch], Awaitable[None]],
        bodies: Sequence[bytes],
        more: dict[str, Any],
    ) -> Batch:
        messages = [message(body, number=next(self._numbers)) for body in bodies]
        made = batch(*messages, **{"settled": self.settled, **more})
        self.given.append(made)
        await handle(made)
        if not made.held:
            made.finish()
        return made

    @property
    def unsettled(self) -> list[bytes]:
        """The bodies that the sink holds."""
        return [
            message.body
            for made in self.given
            for part in made.parts
            for message in part.unsettled()
        ]


class Stdout(Destination):
    """A pipe, which is read when the test looks."""

    recovers = False

    def make(self) -> Handler:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._read = bytearray()
        self._junk = 0
        return StreamSink(self._writer, make_writer(Layout("raw", b"\0")))

    def arrived(self) -> Sequence[bytes]:
        self._fetch()
        return bytes(self._read).split(b"\0")[:-1]

    def refuse(self, refuses: bool) -> None:
        if refuses and self._reader >= 0:
            self._fetch()
            os.close(self._reader)
            self._reader = -1

    def slow(self, seconds: float) -> None:
        """Fill the pipe, which is read after so long."""
        if seconds and not self._junk:
            os.set_blocking(self._writer, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._junk += os.write(self._writer, b"x" * 4096)
            os.set_blocking(self._writer, True)
            asyncio.get_running_loop().call_later(seconds, self._drain)

    def release(self) -> None:
        for fd in (self._reader, self._writer):
            if fd >= 0:
                os.close(fd)

    def _drain(self) -> None:
        while self._junk and self._reader >= 0:
            self._junk -= len(os.read(self._reader, self._junk))

    def _fetch(self) -> None:
        if self._junk or self._reader < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reader, 1 << 20):
                self._read += data


class Files(Destination):
    """``to-file``, whose threads are in the event loop; what is synced has arrived."""

    def make(self) -> Handler:
        self.threads = InLoop()
        self._broken = contextlib.ExitStack()
        self.rules = make_rules(self.folder, filename_format="<TOPIC><REV>.log", **self.options())
        return FileSink(
            make_archives(self.rules, topics=self.topics), max_in_flight=100, threads=self.threads
        )

    def options(self) -> dict[str, Any]:
        return {"delimiter": r"\0", "sync_interval": 1.0}

    def arrived(self) -> Sequence[bytes]:
        found: list[bytes] = []
        for path in sorted((self.folder / "out").rglob("*.log*")):
            with path.open("rb") as file:
                found += b"".join(plain_chunks(file, "none")).split(b"\0")[:-1]
        return found

    def refuse(self, refuses: bool) -> None:
        self._broken.close()
        if refuses:
            self._broken.enter_context(broken("writev", errno.ENOSPC))

    def slow(self, seconds: float) -> None:
        self.threads.slow = seconds

    def release(self) -> None:
        self._broken.close()


class FailingFast(Files):
    """``to-file --fail-fast``."""

    recovers = False

    def options(self) -> dict[str, Any]:
        return {**super().options(), "fail_fast": True}


class Trimming(Files):
    """``channel trim --archive``, all of whose messages are old."""

    recovers = False

    def options(self) -> dict[str, Any]:
        return {**super().options(), "fail_fast": True}

    def make(self) -> Handler:
        begin = Marks(START + HOUR, START + HOUR, START + HOUR)
        trim = Trim(
            {Address("127.0.0.1", 4150): begin},
            expected=1 << 30,
            patience=3600.0,
            max_younger=100,
            now=asyncio.get_running_loop().time(),
        )
        return TrimSink(trim, super().make(), room=100)


class Http(Destination):
    """``to-http`` with one endpoint."""

    is_ordered = False
    buries = rejects = True
    size = 1

    def make(self) -> Handler:
        self._all = Delivering(size=self.size)
        self._all.web.refuses = lambda body: b"bad" in body
        self.letters = self._all.letters
        return self._all.sink

    def arrived(self) -> Sequence[bytes]:
        answered = [each.body for each in self._all.web.sent if each.answer.status == 200]
        return [part for body in answered for part in self.parts(body)]

    def parts(self, body: bytes) -> Sequence[bytes]:
        return [body]

    def refuse(self, refuses: bool) -> None:
        self._all.web.ever["a"] = Answer(503 if refuses else 200)

    def slow(self, seconds: float) -> None:
        self._all.web.ever["a"] = Answer(after=seconds)


class HttpBatches(Http):
    """``to-http --batch 10``."""

    size = 10

    def parts(self, body: bytes) -> Sequence[bytes]:
        found = []
        while body:
            size = int.from_bytes(body[:4], "big")
            found.append(body[4 : 4 + size])
            body = body[4 + size :]
        return found


class Nsqd:
    """In place of a Producer."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.takes = 0.0
        self.refuses = False

    @property
    def is_connected(self) -> bool:
        return not self.refuses

    async def connect(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def publish(
        self, topic: str, bodies: Sequence[bytes], *, defer: float | None = None
    ) -> None:
        if self.takes:
            await elapse(self.takes)
        if self.refuses:
            raise PublishError("connection refused", range(len(bodies)), permanent=False)
        bad = [position for position, body in enumerate(bodies) if body == b"bad"]
        self.got += [body for body in bodies if body != b"bad"]
        if bad:
            raise PublishError("E_BAD_MESSAGE", bad, permanent=True)

    clocks: Mapping[Address, ServerClock] = MappingProxyType({})
    holding: Mapping[Address, int] = MappingProxyType({})

    async def left(self) -> Left:
        """More messages wait in the channel."""
        return Left(waiting=1 << 30)


class Relay(Destination):
    """``relay`` to one nsqd."""

    is_ordered = False
    buries = rejects = True

    def make(self) -> Handler:
        self.nsqd = Nsqd()
        goals = {"events": "goal", "other": "goal"}
        return RelaySink(self.nsqd, goals, Filter(), self.letters, threads=InLoop())  # type: ignore[arg-type]

    def arrived(self) -> Sequence[bytes]:
        return self.nsqd.got

    def refuse(self, refuses: bool) -> None:
        self.nsqd.refuses = refuses

    def slow(self, seconds: float) -> None:
        self.nsqd.takes = seconds


class Redrive(Relay):
    """``redrive --from-topic`` of a channel with further messages."""

    buries = recovers = False
    topics = ("events",)

    def make(self) -> Handler:
        self.nsqd = Nsqd()
        sink = RedriveSink(Redriver(self.nsqd), Choice(), "goal", self.nsqd, start=None)
        sink._threads = InLoop()
        return sink


DESTINATIONS: tuple[type[Destination], ...] = (
    *(Stdout, Files, FailingFast, Trimming, Http, HttpBatches, Relay, Redrive),
)


@contextlib.asynccontextmanager
async def opened(kind: type[Destination], folder: Path) -> AsyncIterator[Destination]:
    """A destination whose sink is open and has joined the topic ``events``; it is closed after."""
    made = kind(folder)
    await made.sink.open()
    await made.sink.join("events")
    try:
        yield made
    finally:
        if not made.is_closed:
            with contextlib.suppress(NSQError):
                await made.close()
        made.release()
