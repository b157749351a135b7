"""Ledgers for tests: stores that stop, stall, forget and fail, and the work done on them."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nsqtools.spark.ledger import ROW_SCHEMA, Claim, FencedError, Ledger
from nsqtools.spark.plans import Offset, Quota
from nsqtools.spark.segments import Ending
from nsqtools.spark.stores import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsqtools.spark.again import MessageKey
    from nsqtools.spark.ledger import Sealed

STREAM = "0123456789abcdef" * 2
SETTLED = Ending(settled=True)


def offset(batch: int = 1, partitions: int = 1, stream: str = STREAM) -> Offset:
    return Offset(stream, batch, tuple(Quota("t", "a:4150", 6) for _ in range(partitions)))


def rows(ids: Sequence[int]) -> pa.RecordBatch:
    """One row for each."""
    return _rows(tuple(ids))


@cache  # pa.array looks for pandas each time, in all the path
def _rows(ids: tuple[int, ...]) -> pa.RecordBatch:
    columns = [
        pa.array(["t"] * len(ids)),
        pa.array(["c"] * len(ids)),
        pa.array(["a:4150"] * len(ids)),
        pa.array([f"{each:016x}" for each in ids]),
        pa.array([each * 1000 for each in ids], pa.timestamp("us", "UTC")),
        pa.array([each * 1_000_000 for each in ids], pa.int64()),
        pa.array([1] * len(ids), pa.int32()),
        pa.array([b"body %d" % each for each in ids]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def key(number: int) -> MessageKey:
    """That of its row."""
    return "t", "c", "a:4150", f"{number:016x}", number * 1_000_000


def ids(sealed: Sealed) -> list[int]:
    found = [
        int(each, 16)
        for batch in sealed.batches()
        for each in batch.column("message_id").to_pylist()
    ]
    assert len(found) == sealed.rows
    return found


def counts(ledger: Ledger, batch: int, partitions: int) -> list[int]:
    """Rows of the partitions that are complete."""
    return [each.rows if each else 0 for each in ledger.complete(batch, partitions)]


def claimed(ledger: Ledger, batch: int = 1, k: int = 0) -> Claim:
    claim = ledger.claim(batch, k)
    assert isinstance(claim, Claim)
    return claim


def filled(ledger: Ledger, *segments: Sequence[int], batch: int = 1, k: int = 0) -> Sealed:
    """A partition that was prepared, with these segments."""
    claim = claimed(ledger, batch, k)
    for segment in segments:
        claim.add(rows(segment))
    return claim.seal(SETTLED)


class Stop(BaseException):
    """The process is killed, or the power fails."""


class Memory:
    """A Store that knows what would be left after a power failure, and can stop at any step.

    What ``write`` made has its content for good, but names in a directory last from its next
    ``sync_dir`` on; until then a failure leaves them as they were after any of the changes.
    """

    def __init__(self) -> None:
        self._root = _Dir()
        self.stop_at = -1
        """The step that is not taken any more; 0 is the next."""
        self.after = False
        """Whether that step is taken, and only what follows is not."""
        self.keeps_all = False
        """Whether nothing can be removed."""

    def fail(self, choose: Callable[[int], int]) -> None:
        """The power fails: ``choose(n)`` tells which of n states each directory has then."""
        self._root.fail(choose)

    def peek(self, path: str) -> list[str]:
        """As ``list``, but no step."""
        return list(self._at(path).entries)

    @contextmanager
    def _step(self) -> Iterator[None]:
        self.stop_at -= 1
        stop = self.stop_at == -1
        if stop and not self.after:
            raise Stop
        yield
        if stop:
            raise Stop

    def make_dir(self, path: str) -> None:
        with self._step():
            folder = self._root
            for name in path.strip("/").split("/"):
                if name not in folder.entries:
                    folder.change({**folder.entries, name: _Dir()})
                folder = folder.sub(name)

    def list(self, path: str) -> list[str]:
        with self._step():
            return list(self._at(path).entries)

    def rename(self, source: str, target: str) -> None:
        with self._step():
            folder, name = self._parent(source)
            to, new = self._parent(target)
            assert folder is to
            if name not in folder.entries:
                raise FileNotFoundError(errno.ENOENT, "gone", source)
            if new in folder.entries and folder.sub(new).entries:
                raise FileExistsError(errno.EEXIST, "there", target)
            entries = dict(folder.entries)
            entries[new] = entries.pop(name)
            folder.change(entries)

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        stop = self.stop_at == 0
        try:
            with self._step():
                self._make_file(path, pa.py_buffer(bytes(data)))
        except Stop:
            if stop and not self.after:
                self._make_file(path, pa.py_buffer(bytes(data)[: len(data) // 2]))
            raise

    def read(self, path: str) -> pa.Buffer:
        with self._step():
            folder, name = self._parent(path)
            if name not in folder.entries:
                raise FileNotFoundError(errno.ENOENT, "gone", path)
            return folder.entries[name]

    def remove(self, path: str) -> None:
        with self._step():
            if self.keeps_all:
                raise PermissionError(errno.EPERM, "not permitted", path)
            folder, name = self._parent(path)
            if name in folder.entries:
                folder.change({key: each for key, each in folder.entries.items() if key != name})

    def sync_dir(self, path: str) -> None:
        with self._step():
            folder = self._at(path)
            folder.states = [folder.entries]

    def _make_file(self, path: str, data: pa.Buffer) -> None:
        folder, name = self._parent(path)
        assert name not in folder.entries
        folder.change({**folder.entries, name: data})

    def _parent(self, path: str) -> tuple[_Dir, str]:
        parent, _, name = path.rpartition("/")
        return self._at(parent), name

    def _at(self, path: str) -> _Dir:
        folder = self._root
        for name in filter(None, path.split("/")):
            if name not in folder.entries:
                raise FileNotFoundError(errno.ENOENT, "gone", path)
            folder = folder.sub(name)
        return folder


@dataclass(slots=True)
class _Dir:
    entries: dict[str, Any] = field(default_factory=dict)
    states: list[dict[str, Any]] = field(default_factory=lambda: [{}])

    def sub(self, name: str) -> _Dir:
        found = self.entries[name]
        if not isinstance(found, _Dir):
            raise NotADirectoryError(errno.ENOTDIR, "a file", name)
        return found

    def change(self, entries: dict[str, Any]) -> None:
        self.entries = entries
        self.states.append(entries)

    def fail(self, choose: Callable[[int], int]) -> None:
        self.entries = self.states[choose(len(self.states))]
        self.states = [self.entries]
        for each in self.entries.values():
            if isinstance(each, _Dir):
                each.fail(choose)


class Late(LocalStore):
    """A LocalStore that stalls between looking up a directory and using it, and before both.

    So what it does may hit a directory that was renamed meanwhile, as with a process that is
    stopped within a system call, or an NFS client that trusts its cache. Nothing is fsynced.
    """

    def __init__(self, stall: Callable[[], None]) -> None:
        self._stall = stall

    @contextmanager
    def _folder(self, path: str) -> Iterator[int]:
        self._stall()
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._stall()
            yield fd
        finally:
            os.close(fd)

    def list(self, path: str) -> list[str]:
        with self._folder(path) as fd:
            return os.listdir(fd)

    def rename(self, source: str, target: str) -> None:
        parent, name = os.path.split(source)
        with self._folder(parent) as fd:
            try:
                os.rename(name, os.path.basename(target), src_dir_fd=fd, dst_dir_fd=fd)
            except OSError as error:
                if error.errno == errno.ENOTEMPTY:
                    raise FileExistsError(errno.EEXIST, "there", target) from error
                raise

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        parent, name = os.path.split(path)
        with self._folder(parent) as fd:
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=fd)
            os.write(file, data)
            os.close(file)

    def read(self, path: str) -> pa.Buffer:
        self._stall()
        with open(path, "rb") as file:
            return pa.py_buffer(file.read())

    def remove(self, path: str) -> None:
        self._stall()
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        with self._folder(path):
            pass


class Actor:
    """A thread that works only while ``step`` lets it, from one stall to the next."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        # Locks that one thread takes and the other gives back: the cheapest hand-over there is.
        self._go, self._stalled = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._stalled.acquire()
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.alive = True
        self.error: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._work(self._stall)
        except FencedError:
            pass
        except BaseException as error:
            self.error = error
        self.alive = False
        self._stalled.release()

    def _stall(self) -> None:
        self._stalled.release()
        self._go.acquire()

    def step(self, count: int | None = None) -> None:
        """Let it go on by so many stalls, or to its end; raises what it failed of, if not fenced.

        To be fenced is the end of an attempt like another.
        """
        while self.alive and count != 0:
            self._go.release()
            self._stalled.acquire()
            count = count - 1 if count is not None else None
        if self.error:
            raise self.error
