"""Publishes chosen messages again, as ``redrive`` does, and keeps a log of what went where."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.clock import wall
from nsqtools.config.connection import ClientConfig, ConsumerConfig, ProducerConfig
from nsqtools.config.consuming import StopOptions
from nsqtools.config.units import counted
from nsqtools.engine.connector import Subscription
from nsqtools.engine.lookup import Backlog
from nsqtools.engine.producer import Producer
from nsqtools.engine.runner import Runner
from nsqtools.errors import ConfigError, NSQError, RecordError, UnreachableError
from nsqtools.names import is_ephemeral
from nsqtools.redrive.letterfile import LetterFile
from nsqtools.redrive.publishedlines import PublishedLines, covers
from nsqtools.redrive.redriver import Choice, Redriver
from nsqtools.redrive.redrivesink import SearchSink
from nsqtools.sinks.deadletters import dead_letter_files
from nsqtools.sinks.threads import Threads, as_output_error
from nsqtools.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from nsqtools.engine.cluster import Snapshot
    from nsqtools.engine.handler import Message
    from nsqtools.names import Address
    from nsqtools.policy.stopping import Left
    from nsqtools.redrive.publishedlines import LineRange
    from nsqtools.sinks.deadletters import DeadLetter

_MAX_ENTRIES = 2000
_MAX_JOBS = 50
_MAX_RUNNING = 5
MOST_SEARCHED = 2000
"""Maximum number of messages in a channel whose originals are to be finished.

All are held at once, so that each gets one attempt, and none is deferred. nsqd keeps them in memory
meanwhile, at most ``max_in_flight_bytes``."""
_IN_FLIGHT = 2500  # nsqd's default limit; others may publish meanwhile
_MOST_SECONDS = 60.0
"""Maximum seconds to publish originals, as they are held until then."""
_PATIENCE = 60.0
"""Seconds to wait for messages of a channel, in addition to those that the rate needs."""
_OWN = {"heartbeat_interval", "read_timeout", "max_msg_size"}
"""The options of a consumer and of a producer whose values differ."""
_GRACE = 2.0
"""Seconds to wait for nsqd's answers at the end of the process."""
_PLACE = re.compile("byte ([0-9]{1,18}) crc ([0-9a-f]{8})( again)?$")
_GONE = "not published: {} has it no longer"
_SINCE = "not published: it was published after it was shown: choose it anew to publish it again"
_LATE = "not published: {} delivered {} without it"


def origin_of(nsqd: Address, message: Message) -> str:
    """Return the origin of a message of a channel. Another nsqd may use the same id."""
    return f"{nsqd} {message.id.decode('latin-1')}"


def origin_in_file(name: str, letter: DeadLetter, *, is_published: bool) -> str:
    """Return the origin of a dead letter, which tells it from those of a later file.

    It also tells whether it was published before: it is then published again.
    """
    return f"{name} byte {letter.offset} crc {letter.crc:08x}{' again' * is_published}"


class PublishedEntry(NamedTuple):
    """A message at a time in seconds since the epoch; ``error`` is empty if it was published."""

    at: float
    origin: str
    size: int
    error: str


class PublishOrder(NamedTuple):
    """Messages to publish, at ``rate`` per second; each has its origin, such as an nsqd and an id.

    ``producer`` is not connected yet.
    """

    topic: str
    messages: Sequence[tuple[str, bytes]]
    rate: float
    producer: Producer


class Republication:
    """The messages of an order on their way to its topic."""

    def __init__(self, order: PublishOrder) -> None:
        self.topic = order.topic
        self.rate = order.rate
        self.begun = wall()
        self._left = dict(order.messages)
        self.total = len(self._left)
        self.published = 0
        self.failed = 0
        self.is_stopped = False
        self.is_over = False
        self.log: deque[PublishedEntry] = deque(maxlen=_MAX_ENTRIES)
        self._producer = order.producer
        self._redriver = Redriver(order.producer, rate=order.rate, limit=self.total)
        self._asked: Collection[str] = ()
        """The origins of the publish under way, or those that a failed one may have published."""

    async def run(self) -> None:
        """Publish all messages, until ``stop``; the log tells what became of each of them."""
        reason = "stopped"
        try:
            async with self._producer:
                await self._publish_all()
        except (NSQError, OSError) as error:
            reason = str(as_output_error(error))
        finally:
            for origin in list(self._left):
                state = "unknown whether published" if origin in self._asked else "not published"
                self.note(origin, f"{state}: {reason}")
            self.is_over = True

    def stop(self) -> None:
        """Begin no further publish; ``run`` returns after the answer to the one under way."""
        self.is_stopped = self.is_stopped or not self.is_over
        self._redriver.stopping.set()

    def note(self, origin: str, error: str = "") -> None:
        """Log what became of a message."""
        if (body := self._left.pop(origin, None)) is not None:
            self.log.append(PublishedEntry(wall(), origin, len(body), error))
            self.published += not error
            self.failed += bool(error)

    async def _publish_all(self) -> None:
        """Publish all messages that are left, and leave the originals where they are."""
        for origin in list(self._left):
            if not await self._redriver.wait(1):
                return
            await self._publish(origin)

    async def _publish(self, origin: str) -> bool:
        """Publish a message and log it; return whether nsqd has it.

        Raises NSQError if that is unknown.
        """
        self._asked = {origin}
        refused = await self._redriver.publish(self.topic, [self._left[origin]])
        if self._redriver.failure:
            raise self._redriver.failure
        self._asked = ()
        self.note(origin, self._redriver.refusal if refused else "")
        return not refused


def lines_published(path: str, max_msg_size: int) -> list[LineRange]:
    """Return the lines of a file of dead letters published before, as far as its journal tells."""
    journal = PublishedLines(os.path.dirname(path))
    try:
        with LetterFile(path, Choice(), topic="", max_msg_size=max_msg_size) as file:
            journal.read()
    except (OSError, RecordError):
        return []
    return journal.published(file.digest)


class LettersAgain(Republication):
    """Dead letters of a file, noted there as ``redrive`` does.

    Jobs share the lock ``writing``, as one of them at a time can have the journal.
    """

    def __init__(
        self, order: PublishOrder, path: str, max_msg_size: int, writing: asyncio.Lock
    ) -> None:
        super().__init__(order)
        self._path = path
        self._max_msg_size = max_msg_size
        self._writing = writing
        self._threads = Threads(1, "letters")

    async def run(self) -> None:
        """Publish all messages as any job does."""
        try:
            await super().run()
        finally:
            self._threads.close()

    async def _publish_all(self) -> None:
        file = LetterFile(self._path, Choice(), topic="", max_msg_size=self._max_msg_size)
        places = {origin: _place(origin) for origin in self._left}
        offsets = {offset for offset, _, _ in places.values()}
        lines = await self._threads.run(_lines_at, file, offsets)
        for origin, (offset, crc, again) in places.items():
            line = lines.get(offset)
            if not line or line.crc != crc:
                self.note(origin, _GONE.format(file.name))
                continue
            if not await self._redriver.wait(1):
                return
            journal = PublishedLines(os.path.dirname(self._path))
            async with self._writing:
                if self._redriver.stopping.is_set():
                    return
                with ExitStack() as held:
                    await self._threads.run(held.enter_context, journal)
                    if not again and covers(journal.published(file.digest), offset):
                        self.note(origin, _SINCE)
                    elif await self._publish(origin):
                        await self._threads.run(journal.add, file.digest, file.name, [line])


def _lines_at(file: LetterFile, offsets: Collection[int]) -> dict[int, LineRange]:
    with file:
        file.sync()
        return file.lines_at(offsets)


def _place(origin: str) -> tuple[int, int, bool]:
    """Return the offset and the CRC-32 in an origin, and whether to publish the letter again.

    The offset is -1 for any other text.
    """
    found = _PLACE.search(origin)
    return (int(found[1]), int(found[2], 16), bool(found[3])) if found else (-1, 0, False)


class OriginSearch(NamedTuple):
    """Where originals are to be found: their channel, the nsqds that they are from, its depth."""

    source: Subscription
    backlog: Backlog
    left: Left


class ChannelAgain(Republication):
    """Messages of a channel, finished there once published."""

    def __init__(self, order: PublishOrder, search: OriginSearch, config: ConsumerConfig) -> None:
        super().__init__(order)
        self._search = search
        self._config = config

    @property
    def sought(self) -> int:
        """The number of messages neither published nor refused yet."""
        return len(self._left)

    def bodies(self, source: Address, messages: Sequence[Message]) -> list[bytes | None]:
        """Return the bodies to publish; None for other messages of the channel."""
        return [self._left.get(origin_of(source, each)) for each in messages]

    def settled(self, source: Address, message: Message, refusal: str) -> None:
        """Log what became of a message."""
        self.note(origin_of(source, message), refusal)

    async def _publish_all(self) -> None:
        source, backlog, left = self._search
        topic, channel, nsqds = source.topic, source.channel, source.nsqds
        sink = SearchSink(self._redriver, self, self.topic, backlog, expected=left.messages)
        stop = StopOptions(max_duration=self.total / self.rate + _PATIENCE)
        runner = Runner([topic], channel, sink, self._config, nsqds=nsqds, stop=stop)
        sink.receive_none = partial(runner.set_max_in_flight, 0)
        try:
            await runner.run()
        finally:
            self._asked = {origin_of(each.batch.source, each.message) for each in sink.asked}
        if not self.is_stopped:
            came = counted(sink.searched, "message")
            error = (_GONE if sink.is_complete else _LATE).format(f"{topic}/{channel}", came)
            for origin in list(self._left):
                self.note(origin, error)


class Republications:
    """The last jobs, and those that run; ``on_error`` is called with the error of a bug.

    ``config`` is for connections to nsqd, and ``folder`` is the directory of dead letters, if any.
    """

    def __init__(
        self, config: ClientConfig, folder: str, on_error: Callable[[BaseException], object]
    ) -> None:
        self._config = config
        self._folder = folder
        self.jobs: dict[str, Republication] = {}
        """The jobs by the nonce of the form that asked for them, so that each is sent only once."""
        self._writing = asyncio.Lock()
        self._tasks = Tasks(on_error)

    @property
    def is_full(self) -> bool:
        """Whether no further job may begin until one has ended."""
        return len(self._tasks) >= _MAX_RUNNING

    async def job(
        self,
        snapshot: Snapshot,
        topic: str,
        messages: Sequence[tuple[str, bytes]],
        rate: float,
        source: str,
        *,
        finish: bool,
    ) -> Republication:
        """Return a job for messages with their origins, to be begun.

        ``source`` is the name of a file, or topic/channel, whose messages ``finish`` finishes.
        Raises ConfigError if they cannot come from there, UnreachableError if no nsqd answers, and
        OSError.
        """
        if not (targets := snapshot.taking(topic)):
            raise UnreachableError("nothing was done: no nsqd answers")
        shared = ClientConfig.declared().keys() - _OWN
        config = ProducerConfig(**{name: vars(self._config)[name] for name in shared})
        order = PublishOrder(topic, messages, rate, Producer(targets, config))
        origin, slash, _ = source.partition("/")
        if origin and not slash and self._folder:
            if origin not in await asyncio.to_thread(dead_letter_files, self._folder):
                raise ConfigError("nothing was done: there is no such file of dead letters")
            path = os.path.join(self._folder, origin)
            return LettersAgain(order, path, self._config.max_msg_size, self._writing)
        if not (slash and finish):
            return Republication(order)
        if topic == origin:
            raise ConfigError("nothing was done: messages would come back to their own topic")
        if len(messages) / rate > _MOST_SECONDS:
            least = f"{len(messages) / _MOST_SECONDS:.2g}"
            text = f"finishing {counted(len(messages), 'original')} needs a rate of {least} or more"
            raise ConfigError(f"nothing was done: {text}, as they are held meanwhile")
        try:
            search = await self.search(snapshot, source, [each for each, _ in messages])
        except NSQError as error:
            raise ConfigError(f"nothing was done: {error}") from None
        held = _IN_FLIGHT * len(search.source.nsqds)
        return ChannelAgain(
            order, search, ConsumerConfig(**{**vars(self._config), "max_in_flight": held})
        )

    async def search(self, snapshot: Snapshot, source: str, origins: Sequence[str]) -> OriginSearch:
        """Return a search for originals in ``source``, which is topic/channel.

        Raises ConfigError if the channel is ephemeral, none of their nsqds has it, or it has too
        many messages, and UnreachableError if that is unknown.
        """
        topic, _, channel = source.partition("/")
        if is_ephemeral(channel):
            text = "nsqd would delete an ephemeral channel at the end of a search"
            raise ConfigError(f"{source}: {text}")
        names = {each.rpartition(" ")[0] for each in origins}
        nsqds = [each for each in snapshot.having(topic, channel) if str(each) in names]
        if not nsqds:
            raise ConfigError(f"no reachable nsqd with these messages has {source}")
        urls = [node.http for node in snapshot.nodes.values() if node.tcp in nsqds]
        subscription = Subscription(topic=topic, channel=channel, nsqds=tuple(nsqds))
        backlog = Backlog(subscription, ConsumerConfig(**vars(self._config)), urls)
        left = await backlog.left()
        if left.unknown:
            text = f"unknown how many messages {source} has: {'; '.join(left.unknown)}"
            raise UnreachableError(text)
        if left.messages > MOST_SEARCHED:
            raise ConfigError(
                f"{source} has {left.messages:,} messages, and a search for originals would cost "
                f"each an attempt: at most {MOST_SEARCHED:,} are searched"
            )
        return OriginSearch(subscription, backlog, left)

    def begin(self, nonce: str, job: Republication, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a job in the background."""
        over = [name for name, each in self.jobs.items() if each.is_over]
        if len(self.jobs) >= _MAX_JOBS:
            del self.jobs[over[0]]
        self.jobs[nonce] = job
        self._tasks.begin(work)

    async def close(self) -> None:
        """Stop all jobs, and end those that have no answer after a moment."""
        for job in self.jobs.values():
            job.stop()
        await self._tasks.wait(within=_GRACE)
        await self._tasks.close()
