"""Ledgers for tests: a store in memory that stalls, loses and delays, and the work done on it."""

from __future__ import annotations

import contextlib
import errno
import io
import threading
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO

from nsqtools.errors import OutputError
from nsqtools.proto.messages import Message
from nsqtools.spark.rows import make_segment
from nsqtools.spark.source.plans import BatchPlan, Quota
from nsqtools.spark.staging.partitions import Claim, Ending, Sealed
from nsqtools.stores.interface import Store, StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from nsqtools.spark.rows import Segment
    from nsqtools.spark.staging.ledger import Ledger
    from nsqtools.spark.staging.redelivered import MessageKey
    from nsqtools.stores.interface import Data

STREAM = "0123456789abcdef" * 2
NSQD = "a:4150"
SETTLED = Ending(settled=True)
UNSETTLED = Ending(settled=False)


def planned(batch: int = 1, partitions: int = 1, stream: str = STREAM) -> BatchPlan:
    return BatchPlan(stream, batch, ((Quota("t", NSQD, 3),),) * partitions)


@cache  # pa.array looks for pandas each time, in all the path
def _segment(ids: tuple[int, ...]) -> Segment:
    messages = [Message(b"%016x" % each, b"body %d" % each, each * 1_000_000, 1) for each in ids]
    return make_segment([(("t", NSQD), messages)])


def segment(*ids: int) -> Segment:
    return _segment(ids)


def key(number: int) -> MessageKey:
    return "t", NSQD, f"{number:016x}", number * 1_000_000


def keys(*numbers: int) -> set[MessageKey]:
    return {key(each) for each in numbers}


def ids(sealed: Sealed) -> list[int]:
    found = [
        int(each, 16)
        for batch in sealed.batches("c")
        for each in batch.column("message_id").to_pylist()
    ]
    assert len(found) == sealed.rows
    return found


def claim_of(ledger: Ledger, of: BatchPlan, k: int) -> Claim | Sealed:
    return ledger.claim(of.offset, k, of.tasks[k])


def claimed(ledger: Ledger, of: BatchPlan | None = None, k: int = 0) -> Claim:
    claim = claim_of(ledger, of or planned(), k)
    assert isinstance(claim, Claim)
    return claim


def sealed(ledger: Ledger, of: BatchPlan | None = None, k: int = 0) -> Sealed:
    found = claim_of(ledger, of or planned(), k)
    assert isinstance(found, Sealed)
    return found


def filled(
    ledger: Ledger,
    *segments: Sequence[int],
    of: BatchPlan | None = None,
    k: int = 0,
    ending: Ending = SETTLED,
) -> Sealed:
    """A partition that was prepared, with these segments."""
    claim = claimed(ledger, of, k)
    for each in segments:
        claim.add(segment(*each))
    return claim.seal(ending)


def bodies_of(*parts: Sequence[dict[str, Any]]) -> Counter[bytes]:
    return Counter(row["body"] for rows in parts for row in rows)


class Stop(BaseException):
    """The process is killed, or the power fails."""


class Memory(Store):
    """A client of a store in memory, which it calls ``stall`` before and after each change to.

    ``fate`` is what happens to the next file that it creates: its response is ``lost``, or it is
    ``late`` and arrives when somebody calls ``arrive``.
    """

    threads = 1

    def __init__(self, shared: Memory | None = None, stall: Callable[[], None] = lambda: None):
        super().__init__("memory:/staging")
        self.content: dict[str, bytes] = shared.content if shared else {}
        self.late: list[tuple[str, bytes]] = shared.late if shared else []
        self.created: Callable[[str, bytes], None] = shared.created if shared else lambda *_: None
        self.stall = stall
        self.fate = ""
        self.calls: Counter[str] = Counter()

    @contextlib.contextmanager
    def _call(self, name: str) -> Iterator[None]:
        self.calls[name] += 1
        self.stall()
        yield
        self.stall()

    def put_if_absent(self, path: str, data: Data) -> bool:
        with self._call("put_if_absent"):
            fate, self.fate = self.fate, ""
            if fate == "late":
                self.late.append((path, bytes(data)))
            else:
                done = self._create(path, bytes(data))
            if fate:
                raise OSError(errno.EIO, "no response", path)
        return done

    def _create(self, path: str, data: bytes) -> bool:
        absent = self.content.setdefault(path, data) is data
        if absent:
            self.created(path, data)
        return absent

    def arrive(self, number: int) -> None:
        """A late request arrives, if there is one."""
        if self.late:
            self._create(*self.late.pop(number % len(self.late)))

    def put(self, path: str, data: Data) -> None:
        with self._call("put"):
            self.content[path] = bytes(data)

    def get(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        with self._call("get"):
            if path not in self.content:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            end = None if size is None else start + size
            return self.content[path][start:end]

    def list(self, path: str) -> list[str]:
        with self._call("list"):
            names = (name[len(path) + 1 :] for name in _below(self.content, path))
            return sorted({name.partition("/")[0] for name in names})

    def list_below(self, path: str) -> Mapping[str, Collection[str]]:
        with self._call("list"):
            return super().list_below(path)

    def files(self, path: str = "") -> Iterator[StoredFile]:
        return (StoredFile(name, len(self.content[name]), 0) for name in _below(self.content, path))

    def stat(self, path: str) -> StoredFile:
        return next(each for each in self.files() if each.path == path)

    def delete(self, path: str) -> None:
        for name in [path, *reversed(_below(self.content, path))]:
            if name in self.content:
                with self._call("delete"):
                    self.content.pop(name, None)

    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        file = io.BytesIO()
        yield file
        if replace:
            self.put(path, file.getvalue())
        elif not self.put_if_absent(path, file.getvalue()):
            raise FileExistsError(errno.EEXIST, "exists", path)


def _below(content: dict[str, bytes], path: str) -> list[str]:
    return sorted(name for name in list(content) if name.startswith(f"{path}/"))


class Overtaken(Exception):  # noqa: N818 - as Spark calls it, more or less
    """Another driver was faster, which Spark's log tells."""


class Actor:
    """A thread that works only while ``step`` lets it, from one stall to the next."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        # Locks that one thread takes and the other gives back: the cheapest hand-over there is.
        self._go, self._stalled = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._stalled.acquire()
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._killed = False
        self._stalls: int | None = None
        self.alive = True
        self.error: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._work(self._stall)
        except (OutputError, Overtaken, Stop):
            pass  # to fail is an end like another
        except BaseException as error:
            self.error = error
        self.alive = False
        self._stalled.release()

    def _stall(self) -> None:
        if self._stalls is not None and not self._killed:
            self._stalls -= 1
            if self._stalls == 0:
                self._stalled.release()
                self._go.acquire()
        if self._killed:
            raise Stop

    def step(self, count: int | None = None) -> None:
        """Let it go on by so many stalls, or to its end; raises errors that are not OutputError."""
        if self.alive and count != 0:
            self._stalls = count
            self._go.release()
            self._stalled.acquire()
        if self.error:
            raise self.error

    def kill(self) -> None:
        """End it where it is."""
        self._killed = True
        self.step()


class Nsqd:
    """A channel: it delivers again whatever was not finished by whom it was delivered to."""

    def __init__(self, total: int) -> None:
        self.waiting = list(range(total))
        self.in_flight: dict[int, Connection] = {}
        self.deliveries: Counter[int] = Counter()
        self.finished: list[int] = []

    def requeue(self, number: int) -> None:
        """A message in flight times out, or was given back."""
        del self.in_flight[number]
        self.waiting.append(number)


class Connection:
    """A consumer of the channel; ``settled`` is whether all it took is finished, as it knows."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self.lost = False
        self.settled = True

    def take(self, most: int) -> tuple[list[int], list[int]]:
        """Messages, and those of them that were delivered before."""
        if self.lost:
            self.settled = False
            return [], []
        taken, self._nsqd.waiting = self._nsqd.waiting[:most], self._nsqd.waiting[most:]
        again = [each for each in taken if self._nsqd.deliveries[each]]
        self._nsqd.deliveries.update(taken)
        self._nsqd.in_flight.update(dict.fromkeys(taken, self))
        return taken, again

    def finish(self, taken: Sequence[int]) -> None:
        for each in taken:
            if not self.lost and self._nsqd.in_flight.get(each) is self:
                del self._nsqd.in_flight[each]
                self._nsqd.finished.append(each)
            else:
                self.settled = False

    def held(self) -> list[int]:
        return [each for each, who in self._nsqd.in_flight.items() if who is self]


def pull(
    claim: Claim, connection: Connection, count: int, stall: Callable[[], None] = lambda: None
) -> Sealed:
    """Stage up to ``count`` messages and finish them, as ``receive`` does."""
    left = count - claim.adopted().total()
    while left > 0:
        taken, again = connection.take(min(left, 2))
        stall()
        staged = claim.staged(keys(*again)) if again else set()
        if fresh := [each for each in taken if key(each) not in staged]:
            claim.add(segment(*fresh))
            left -= len(fresh)
        stall()
        connection.finish(taken)
        stall()
        if not (taken and connection.settled):
            break
    return claim.seal(Ending(connection.settled))
