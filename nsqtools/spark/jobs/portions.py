"""The portions of a replay: Parquet files, published by the driver's process or by tasks of Spark.

Each portion has a position in the staging, which is replaced before messages are sent. Whoever
continues a portion replaces its position first, so an obsolete task cannot go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from nsqtools.engine.producer import Producer
from nsqtools.errors import (
    REFUSED_BODY,
    ConfigError,
    LockedError,
    NSQError,
    OutputError,
    PublishError,
    RecordError,
    ServerError,
)
from nsqtools.policy.pace import Pace
from nsqtools.proto.commands import publish_many_size
from nsqtools.spark.jobs.versions import Versions
from nsqtools.spark.lake.inputs import check_same, in_shares, open_file
from nsqtools.spark.source.sourceoptions import parse_sink, with_secret
from nsqtools.stores import in_threads, open_store
from nsqtools.stores.interface import as_output_error
from nsqtools.tasks import end, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from nsqtools.spark.source.sourceoptions import SinkSettings
    from nsqtools.stores.interface import Store

STOP = "stop"
"""The file in the staging that tells tasks to end."""

_BYTES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())
_CHUNK_BYTES = 1 << 20
_AT_ONCE = 2
"""Portions that one process publishes at the same time, unless order or rate matter."""
_PORTIONS = 64
_POLL = 0.2
_LOOK = 1.0
_GRACE = 5.0
"""Seconds that messages under way get after ``stop`` is set."""


class BodyFile(NamedTuple):
    """A Parquet file with a column ``body``, as it was found."""

    path: str
    rows: int
    size: int
    mtime_ns: int

    @classmethod
    def open(cls, path: str, size: int, mtime_ns: int) -> BodyFile:
        """Read the number of rows.

        Raises ConfigError without a column ``body`` of bytes or text, RecordError for damage.
        """
        with _reading(path), open_file(path) as source, pq.ParquetFile(source) as file:
            schema = file.schema_arrow
            kinds = [field.type for field in schema if field.name.lower() == "body"]
            if not kinds:
                raise ConfigError(f"{path}: has no column body")
            if kinds[0] not in _BYTES:
                raise ConfigError(f"{path}: column body is {kinds[0]}: expected binary or string")
            return cls(path, file.metadata.num_rows, size, mtime_ns)

    def bodies(self, start: int) -> Iterator[list[bytes | str | None]]:
        """Yield the bodies from this row on; one row group is in memory at a time."""
        check_same(self.path, self.size, self.mtime_ns)
        at = 0
        with _reading(self.path), open_file(self.path) as source, pq.ParquetFile(source) as file:
            (name,) = [each for each in file.schema_arrow.names if each.lower() == "body"][:1]
            for number in range(file.num_row_groups):
                after = at + file.metadata.row_group(number).num_rows
                if start < after:
                    group = file.read_row_group(number, columns=[name])
                    for column in group.column(0).slice(max(start - at, 0)).chunks:
                        yield column.to_pylist()
                at = after


Portion: TypeAlias = "tuple[BodyFile, ...]"


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a portion is done, in rows from its first file on.

    Rows before ``done`` are done; those before ``sent`` may have been published, too. nsqd has
    answered OK for ``published`` messages and has permanently rejected ``refused``, the first for
    this ``reason``; the other rows that are done have no body. At most ``again`` messages were
    published twice.
    """

    done: int = 0
    sent: int = 0
    published: int = 0
    refused: int = 0
    again: int = 0
    reason: str = ""

    def continued(self) -> Position:
        """Return the position of an attempt that begins where another one ended."""
        return replace(self, sent=self.done, again=self.again + self.sent - self.done)


def divided(files: Sequence[BodyFile], *, whole: bool) -> list[Portion]:
    """Divide files into portions; with ``whole`` there is only one, which keeps their order."""
    if whole:
        return [tuple(files)]
    return [tuple(files[share]) for share in in_shares([each.size for each in files], _PORTIONS)]


def positions(store: Store, folder: str, count: int) -> list[Position]:
    """Return the positions of so many portions; raises OSError, and OutputError for damage."""
    return in_threads(lambda n: _load(_versions(store, folder, n)), range(count))


@dataclass(frozen=True, slots=True)
class PublishTask:
    """Publishes portions; ``sink`` has options of the sink ``nsq``. It is sent to executors.

    The positions are in ``folder`` of the staging. ``rate`` is in messages per second, 0 for no
    limit.
    """

    staging: str
    folder: str
    sink: Mapping[str, str]
    in_order: bool = False
    rate: float = 0.0

    def __call__(self, portions: Iterable[tuple[int, Portion]]) -> Iterator[str]:
        """Publish, and yield the error if there is one: then it also tells other tasks to end.

        Spark would repeat a task that raises, which does not help if nsqd refuses. Raises
        LockedError if another attempt has taken over.
        """
        store = open_store(self.staging)
        stop, over = threading.Event(), threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK):
                with contextlib.suppress(OSError):
                    store.stat(STOP)
                    stop.set()

        threading.Thread(target=watch, name="nsqtools-stop", daemon=True).start()
        try:
            self.run(portions, stop, lambda _: None)
        except LockedError:
            raise
        except NSQError as error:
            store.put(STOP, b"")
            yield str(error)
        finally:
            over.set()

    def run(
        self,
        portions: Iterable[tuple[int, Portion]],
        stop: threading.Event,
        passed: Callable[[int], None],
    ) -> None:
        """Publish from the positions of the portions, until ``stop`` is set.

        ``passed`` is called with numbers of rows that are done. Raises PublishError if no nsqd
        accepts messages, UnreachableError, LockedError, RecordError and OutputError.
        """
        sink, store = parse_sink(self.sink), open_store(self.staging)
        left, pace = iter(portions), Pace(self.rate)

        async def work(producer: Producer) -> None:
            for number, portion in left:
                versions = _versions(store, self.folder, number)
                await _PortionSender(producer, sink, versions, pace, stop, passed).run(portion)

        async def work_together() -> None:
            async with Producer(sink.nsqds, with_secret(sink)) as producer:
                await together(*(work(producer) for _ in range(1 if self.in_order else _AT_ONCE)))

        with as_output_error(self.staging):
            asyncio.run(work_together())


class _Chunk(NamedTuple):
    """Bodies for one MPUB; ``end`` is the row of the portion after them."""

    end: int
    bodies: list[bytes]


@dataclass(slots=True, eq=False)
class _PortionSender:
    """One portion on its way to a topic."""

    producer: Producer
    sink: SinkSettings
    versions: Versions
    pace: Pace
    stop: threading.Event
    passed: Callable[[int], None]
    position: Position = field(init=False, default=Position())
    noted: Position = field(init=False, default=Position())

    async def run(self, portion: Portion) -> None:
        """Publish it, one chunk after another; the next one is read meanwhile."""
        self.position = (await asyncio.to_thread(_load, self.versions)).continued()
        limit = min(self.sink.config.max_body_size, _CHUNK_BYTES)
        chunks = _chunks(portion, self.position.done, limit, self.pace.burst(_CHUNK_BYTES))
        chunk = await asyncio.to_thread(self._next, chunks)
        while chunk:
            is_done, chunk = await together(
                self._publish(chunk), asyncio.to_thread(self._next, chunks)
            )
            if not is_done:
                break
        if self.position != self.noted:
            await asyncio.to_thread(self._note, self.position)

    def _next(self, chunks: Iterator[_Chunk]) -> _Chunk | None:
        """The next chunk, once it is noted that its messages may have been published."""
        chunk = None if self.stop.is_set() else next(chunks, None)
        if chunk:
            self._note(replace(self.position, sent=chunk.end))
        return chunk

    def _note(self, position: Position) -> None:
        self.versions.save(asdict(position))
        self.noted = position

    async def _publish(self, chunk: _Chunk) -> bool:
        """Publish and count; False if it was told to end before nsqd has accepted the chunk."""
        before, count = self.position, len(chunk.bodies)
        await self._rest(self.pace.delay(count, now=asyncio.get_running_loop().time()))
        if self.stop.is_set():
            return False
        self.position = replace(before, sent=chunk.end)
        refused, reason = 0, ""
        try:
            if count and not await self._is_accepted(chunk.bodies):
                return False
        except PublishError as error:
            if not _blames_bodies(error):
                raise
            refused, reason = len(error.refused), str(error)
        self.position = replace(
            self.position,
            done=chunk.end,
            published=before.published + count - refused,
            refused=before.refused + refused,
            reason=before.reason or reason,
        )
        self.passed(chunk.end - before.done)
        return True

    async def _rest(self, seconds: float) -> None:
        """Let time pass, but no more of it once told to end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0 and not self.stop.is_set():  # noqa: ASYNC110
            await asyncio.sleep(min(left, _POLL))

    async def _is_accepted(self, bodies: Sequence[bytes]) -> bool:
        """Publish; False if it was told to end and nsqd has not answered soon after."""
        task = asyncio.ensure_future(self.producer.publish(self.sink.topic, bodies))
        try:
            while not self.stop.is_set() and not task.done():
                await asyncio.wait({task}, timeout=_POLL)
            await asyncio.wait({task}, timeout=_GRACE)
        finally:
            await end([task])
        if task.cancelled():
            return False
        task.result()
        return True


def _load(versions: Versions) -> Position:
    """Return a position as it is in the staging; raises OSError, and OutputError for damage."""
    try:
        return Position(**versions.load())
    except FileNotFoundError:
        return Position()
    except (TypeError, ValueError):
        raise OutputError(
            f"{versions.url}: is not a readable position: remove the directory of --staging to "
            "replay from the beginning"
        ) from None


def _versions(store: Store, folder: str, number: int) -> Versions:
    return Versions(store, f"{folder}/{number}")


def _chunks(portion: Portion, start: int, limit: int, most: int) -> Iterator[_Chunk]:
    """Yield the bodies from this row on, without empty ones, in chunks.

    A chunk is an MPUB of at most ``limit`` bytes, if it has two bodies, and ``most`` bodies.
    """
    row, size = start, 0
    bodies: list[bytes] = []
    for each in _bodies(portion, start):
        if each:
            body = each.encode() if isinstance(each, str) else each
            size += len(body)
            if bodies and (len(bodies) >= most or publish_many_size(len(bodies) + 1, size) > limit):
                yield _Chunk(row, bodies)
                bodies, size = [], len(body)
            bodies.append(body)
        row += 1
    if row > start:
        yield _Chunk(row, bodies)


def _bodies(portion: Portion, start: int) -> Iterator[bytes | str | None]:
    for file in portion:
        if start < file.rows:
            for column in file.bodies(start):
                yield from column
        start = max(start - file.rows, 0)


def _blames_bodies(error: PublishError) -> bool:
    """Whether it is for the bodies alone that they were refused; else no other would be taken."""
    cause = error.__cause__
    by_nsqd = isinstance(cause, ServerError) and cause.code in REFUSED_BODY
    return error.permanent and (cause is None or by_nsqd)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise RecordError(f"{path}: {reason}") from error
