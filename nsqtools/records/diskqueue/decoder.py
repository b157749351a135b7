"""Records of disk queues to messages and back, past damage. No I/O."""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING

from nsqtools.proto.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEADER = Struct(">iqH16s")  # size, timestamp, attempts, id
_SIZE_LENGTH = 4
_ID_OFFSET = 14
_LEAST = _HEADER.size - _SIZE_LENGTH

# An id, as nsqd writes it in lower case (nsqd/guid.go), 14 bytes after a size below 128 MiB and 10
# after a time from 2001 to 2100: where a record could begin.
_CANDIDATE = re.compile(rb"[0-9a-f]{16}(?<=[\x00-\x07][\x00-\xff]{3}[\x0d-\x39][\x00-\xff]{25})")


def encode(messages: Iterable[Message]) -> bytes:
    """Return the records of the messages."""
    records = (
        (_HEADER.pack(_LEAST + len(each.body), each.timestamp, each.attempts, each.id), each.body)
        for each in messages
    )
    return b"".join(part for record in records for part in record)


class QueueDecoder:
    """Splits the bytes of one file into messages, and looks for the next record after damage.

    A record is doubtful if something else than a record follows it: its size is wrong if another
    record begins within it that is followed by a record or by the end of the file, and then it is
    skipped. Damage within a body cannot be noticed. The result does not depend on how the file is
    divided into chunks. Memory holds at most two records and a chunk; a body has at most
    ``max_msg_size`` bytes.
    """

    def __init__(self, max_msg_size: int) -> None:
        self.skipped = 0
        """Number of bytes that belong to no record, so far."""
        self._limit = max_msg_size + _LEAST
        self._held: list[bytes] = []  # from the last record, until it is known what follows it
        self._have = 0
        self._need = 0
        self._is_lost = False  # whether it is unknown where the next record begins

    def feed(self, chunk: bytes) -> list[Message]:
        """Return messages that are now complete, up to the last one but for those in doubt."""
        self._held.append(chunk)
        self._have += len(chunk)
        return self._decode(is_end=False) if self._have >= self._need else []

    def finish(self) -> list[Message]:
        """Return the other messages, at the end of the file."""
        return self._decode(is_end=True)

    def is_within_record(self) -> bool:
        """Whether the data so far ends within a record, which the writer may not have completed."""
        data = b"".join(self._held)
        whole = self._end_of(data, 0)
        return not self._is_lost and len(data) not in (0, whole)

    def _decode(self, *, is_end: bool) -> list[Message]:
        data = b"".join(self._held)
        messages: list[Message] = []
        start, last, need, begin = 0, -1, 0, 0
        while True:
            if not self._is_lost:
                start, last = self._take(data, start, messages)
                left, need = len(data) - start, self._end_of(data, start)
                if not left or (not is_end and (left < _HEADER.size or need)):
                    break
                if last >= 0 and not need:
                    within, need = self._within(data, last, start, is_end=is_end)
                    if need:  # it is unknown what follows the record within the last one
                        break
                    if within:
                        messages.pop()
                        self.skipped += within - last
                        start = within
                        continue
                begin = start + 1
            found = self._next(data, begin)
            self._is_lost = found < 0
            if self._is_lost:  # of a header that is incomplete, the rest may come
                found = len(data) if is_end else max(start, len(data) - _HEADER.size + 1)
            self.skipped += found - start
            start, last = found, -1
            if self._is_lost:
                break
        if last >= 0 and not is_end and not self._end_of(data, start):  # it is in doubt
            messages.pop()
            start = last
        self._held = [data[start:]]
        self._have = len(data) - start
        self._need = max(0, need - start)
        return messages

    def _within(self, data: bytes, last: int, start: int, *, is_end: bool) -> tuple[int, int]:
        """Where a record begins within the last one, which is then none, else 0.

        And how many bytes are needed to know, if they may come. If two headers share most of an id,
        one of them has bytes of the id for attempts: the one with fewer attempts is right.
        """
        attempts, body = _HEADER.unpack_from(data, last)[2], last + _HEADER.size
        found = last
        while last < (found := self._next(data, found + 1)) < start:
            if found < body and _HEADER.unpack_from(data, found)[2] >= attempts:
                continue
            end = self._end_of(data, found)
            if not is_end and len(data) - end < _HEADER.size:
                return 0, end + _HEADER.size
            if self._end_of(data, end) or end == len(data):
                return found, 0
        return 0, 0

    def _take(self, data: bytes, start: int, messages: list[Message]) -> tuple[int, int]:
        """Append complete records; return where they end, and where the last begins, or -1."""
        unpack, append = _HEADER.unpack_from, messages.append
        least, limit, length = _LEAST, self._limit, _HEADER.size
        end, last = len(data), -1
        while end - start >= length:
            size, timestamp, attempts, id_ = unpack(data, start)
            after = start + _SIZE_LENGTH + size
            if after > end or not (least <= size <= limit and id_.isalnum()):
                break
            append(Message(id_, data[start + length : after], timestamp, attempts))
            start, last = after, start
        return start, last

    def _end_of(self, data: bytes, start: int) -> int:
        """The end of the record that has its header here, maybe after the data; 0 for none."""
        if len(data) - start < _HEADER.size:
            return 0
        size, _, _, id_ = _HEADER.unpack_from(data, start)
        end: int = start + _SIZE_LENGTH + size
        return end if _LEAST <= size <= self._limit and id_.isalnum() else 0

    def _next(self, data: bytes, begin: int) -> int:
        """Where the next record begins that looks like one of nsqd's; -1 for nowhere."""
        while match := _CANDIDATE.search(data, begin + _ID_OFFSET):
            begin = match.start() - _ID_OFFSET
            if self._end_of(data, begin):
                return begin
            begin += 1
        return -1
