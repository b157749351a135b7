"""Messages appended to the disk queue of one channel, while no nsqd runs.

nsqd reads the files of a queue in order, each to its end, and writes to the last file. So the
messages become a new file after the last one. After each step nsqd can start on the data path,
with all the old messages, and with either all or none of the new messages:

1. The file is written to the same directory, under a name ignored by nsqd.
2. The next number gets an empty file, and meta names this file as the next to write.
3. The new file replaces the empty file: from now on nsqd would read the new messages.
4. meta counts the new messages, and moves the write position behind them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING, Self

from nsqtools.config.units import counted
from nsqtools.errors import ConfigError, LockedError, OutputError, RecordError
from nsqtools.names import check_name, is_ephemeral
from nsqtools.proto.messages import Message
from nsqtools.records.diskqueue.decoder import encode
from nsqtools.records.diskqueue.queuefiles import (
    DiskQueue,
    FilePosition,
    QueueMeta,
    disk_queues,
    open_regular,
)
from nsqtools.stores.interface import naming
from nsqtools.stores.mounted import write_all
from nsqtools.stores.pinned import sync_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORK, _NEW, _OLD = ".push", ".new", ".old"
_FILE_MODE = 0o600  # as nsqd's
_ID_BYTES = 8
_MOST_TOPICS = 64 << 20
"""Maximum bytes of nsqd's list of topics and channels."""


class QueueAppender:
    """Appends messages to the queue of a channel; a context manager that holds nsqd's lock.

    ``commit`` makes the messages of all ``add`` calls part of the queue, durably; without
    ``commit`` nothing changes. Raises ConfigError if the channel is unknown to nsqd or has no disk
    queue, LockedError if an nsqd runs, RecordError if the files are inconsistent, and OSError with
    the file's name: the messages are then not in the queue. With ``dry_run`` nothing is written.
    """

    def __init__(self, folder: str, topic: str, channel: str, *, dry_run: bool = False) -> None:
        for kind, name in (("topic", topic), ("channel", channel)):
            if is_ephemeral(check_name(kind, name)):
                raise ConfigError(f"{kind} {name} is ephemeral: it has no disk queue")
        self._queue = DiskQueue(folder, topic, channel)
        self._is_dry_run = dry_run
        self._lock = self._fd = -1
        self.messages = 0
        """Number of messages added so far; ``bytes`` is the size of their records."""
        self.bytes = 0

    def __enter__(self) -> Self:
        folder = self._queue.folder
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._take_lock()
            self._owner = self._owner_of_known_channel()
            self._meta = self._queue.meta()
            self._target = self._next_file()
            if not self._is_dry_run:
                self._remove(self._work)
                self._fd = self._create(self._work)
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # An error here changes nothing about the messages, and must not hide another one.
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            with contextlib.suppress(OSError):
                self._remove(self._work)
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def add(self, bodies: Sequence[bytes], timestamps: Sequence[int]) -> None:
        """Add messages with these times of publishing, in ns since the epoch. They get new ids.

        Ids are unique only within a topic of one nsqd, which identifies the in-flight messages of
        a channel by id.
        """
        ids = os.urandom(_ID_BYTES * len(bodies)).hex().encode()
        size = 2 * _ID_BYTES
        data = encode(
            Message(ids[n * size : (n + 1) * size], body, timestamps[n], 0)
            for n, body in enumerate(bodies)
        )
        self.messages += len(bodies)
        self.bytes += len(data)
        if not self._is_dry_run:
            with naming(self._work):
                write_all(self._fd, data)

    def commit(self) -> None:
        """Make the added messages the newest of the queue.

        Raises OutputError if a call failed but nsqd will find the messages all the same.
        """
        if self._is_dry_run or not self.messages:
            return
        with naming(self._work):
            os.fsync(self._fd)
        meta, target = self._meta or QueueMeta(), self._target
        path = self._queue.path(target)
        size = self._size(meta.write.file)
        drained = meta.read == meta.write and size == meta.write.offset > 0
        if self._meta:
            self._replace(self._queue.path("meta") + _OLD, meta.encode())
        if not os.path.lexists(path):
            os.close(self._create(path))
        write = FilePosition(target, 0)
        # nsqd treats a file without further messages as damaged
        read, depth = (write, 0) if drained else (meta.read, max(0, meta.depth))
        self._replace(self._queue.path("meta"), QueueMeta(depth, read, write).encode())
        try:
            with naming(path):
                os.rename(self._work, path)
            sync_directory(self._queue.folder)
            write = FilePosition(target, self.bytes)
            meta_after = QueueMeta(depth + self.messages, read, write)
            self._replace(self._queue.path("meta"), meta_after.encode())
            if drained:  # as nsqd deletes files after reading them
                self._remove(self._queue.path(meta.read.file))
        except OSError as error:
            if os.path.lexists(self._work):
                raise
            raise OutputError(
                f"{error.filename or path}: {error.strerror}: all the same "
                f"{counted(self.messages, 'message')} may have been appended: look with nsqtools "
                "queue ls before you push them again"
            ) from error

    @property
    def _work(self) -> str:
        return self._queue.path("meta") + _WORK

    def _take_lock(self) -> None:
        """Take the lock as nsqd does (``internal/dirlock``)."""
        try:
            with naming(self._queue.folder):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(
                f"{self._queue.folder} is locked: stop the nsqd that runs on it"
            ) from None

    def _owner_of_known_channel(self) -> tuple[int, int]:
        """Return user and group of nsqd's files; raises ConfigError for an unknown channel."""
        path = os.path.join(self._queue.folder, "nsqd.dat")
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            raise ConfigError(f"{self._queue.folder}: not the data path of an nsqd") from None
        with open(fd, "rb") as file:
            try:
                known = {
                    (topic["name"], channel["name"])
                    for topic in json.loads(file.read(_MOST_TOPICS))["topics"]
                    for channel in topic["channels"] or ()  # a topic without any has null
                }
            except (ValueError, TypeError, KeyError, RecursionError):
                raise RecordError(f"{path}: not a list of topics, as nsqd writes it") from None
            status = os.fstat(fd)
        queue = self._queue
        if (queue.topic, queue.channel) not in known:
            raise ConfigError(
                f"{path} has no channel {queue.channel} of topic {queue.topic}: create it first"
            )
        return status.st_uid, status.st_gid

    def _next_file(self) -> int:
        """Return the number of the file for the messages: nsqd's last file if empty, else the next.

        If the last file is longer than meta says, nsqd itself reads the whole file and writes to
        the next one. Raises RecordError if nsqd may use the number otherwise.
        """
        if not self._meta:
            mine = filter(self._queue.is_same, disk_queues(self._queue.folder)[0])
            if any(self._size(number) for each in mine for number in each.numbers):
                raise RecordError(
                    f"{self._queue.path('meta')}: missing, so nsqd would overwrite the files: save "
                    "their messages with nsqtools queue cat"
                )
            return 0
        size = self._size(self._meta.write.file)
        if self._meta.read > self._meta.write or size < self._meta.write.offset:
            raise RecordError(
                f"{self._queue.path('meta')}: does not fit the files: save their messages with "
                "nsqtools queue cat"
            )
        if not size:
            return self._meta.write.file
        if self._size(self._meta.write.file + 1):
            raise RecordError(
                f"{self._queue.path(self._meta.write.file + 1)}: unknown to meta, so nsqd would "
                "overwrite it: save its messages with nsqtools queue cat, then remove it"
            )
        return self._meta.write.file + 1

    def _size(self, number: int) -> int:
        """Return the size of a file; 0 if the file does not exist."""
        try:
            fd = open_regular(self._queue.path(number))
        except FileNotFoundError:
            return 0
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _create(self, path: str) -> int:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        try:
            with naming(path):
                status = os.fstat(fd)
                if (status.st_uid, status.st_gid) != self._owner:
                    os.fchown(fd, *self._owner)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        return fd

    def _replace(self, path: str, data: bytes) -> None:
        """Replace a file durably: write a new file in the same directory and rename it."""
        self._remove(path + _NEW)
        fd = self._create(path + _NEW)
        try:
            with naming(path):
                write_all(fd, data)
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(path + _NEW, path)
        sync_directory(self._queue.folder)

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
