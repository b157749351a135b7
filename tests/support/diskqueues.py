"""Disk queues as tests make them, and what nsqd makes of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsqtools.proto.messages import Message
from nsqtools.records.diskqueue.decoder import QueueDecoder, encode
from nsqtools.records.diskqueue.queuefiles import FilePosition, QueueMeta
from nsqtools.sinks.appender import QueueAppender

LIMIT = 1 << 20
_BEGAN = 1_700_000_000 * 10**9


def messages(numbers: Iterable[int], size: int = 10) -> list[Message]:
    """Messages whose bodies begin with their numbers, a second apart."""
    return [
        Message(b"%016x" % (n + 1), (b"%d " % n).ljust(size, b"x"), _BEGAN + n * 10**9, 1)
        for n in numbers
    ]


def numbers(found: Iterable[Message]) -> list[int]:
    """The numbers in the bodies of messages."""
    return [int(each.body.split()[0]) for each in found]


@dataclass
class QueueFiles:
    """The files of a queue in nsqd's data path."""

    folder: Path
    name: str = "t:c"

    def path(self, part: int | str) -> Path:
        part = f"{part:06}" if isinstance(part, int) else part
        return self.folder / f"{self.name}.diskqueue.{part}.dat"

    def write(self, part: int | str, data: Iterable[Message] | bytes) -> int:
        """Write a file; returns its size."""
        data = data if isinstance(data, bytes) else encode(data)
        return self.path(part).write_bytes(data)

    def point(self, depth: int, read: tuple[int, int], write: tuple[int, int]) -> None:
        """Write the meta file."""
        self.write("meta", QueueMeta(depth, FilePosition(*read), FilePosition(*write)).encode())

    def make_known(self) -> None:
        """Write nsqd's list of topics and channels."""
        topic, _, channel = self.name.partition(":")
        known = {"name": topic, "paused": False, "channels": [{"name": channel, "paused": False}]}
        (self.folder / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": [known]}))

    def as_nsqd_reads(self) -> tuple[list[Message], list[int]]:
        """What an nsqd that starts now delivers, and the files that it gives up (diskqueue.go)."""
        meta = QueueMeta()
        if self.path("meta").exists():
            meta = QueueMeta.parse(self.path("meta").read_bytes())
        (file, offset), (last, end) = meta.read, meta.write
        if self.path(last).exists() and end < self.path(last).stat().st_size:
            last, end = last + 1, 0
        found: list[Message] = []
        bad = []
        while (file, offset) < (last, end):
            data = self.path(file).read_bytes() if self.path(file).exists() else b""
            data = data[offset : end if file == last else len(data)]
            decoder = QueueDecoder(LIMIT)
            found += decoder.feed(data) + decoder.finish()
            if decoder.skipped or not data:
                bad.append(file)
            file, offset = file + 1, 0
        return found, bad


def push(folder: Path, bodies: Sequence[bytes], name: str = "t:c") -> None:
    """Append messages, as the command does."""
    topic, _, channel = name.partition(":")
    with QueueAppender(str(folder), topic, channel) as queue:
        queue.add(bodies, [_BEGAN] * len(bodies))
        queue.commit()
