"""The frame parser: extracts all frames of a read in one pass.

A frame is a 4-byte size, a 4-byte type and data; the size counts type and data
(tcp_protocol_spec, Data Format). The parser keeps at most one incomplete frame, as a list
of reads. So a body of any size is copied once, out of these reads.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING

from nsqtools.config.units import format_size
from nsqtools.errors import MessageSizeError, ProtocolError
from nsqtools.names import NSQD_TCP_PORT
from nsqtools.proto.messages import Message

if TYPE_CHECKING:
    from nsqtools.names import Address


class FrameType(IntEnum):
    """The kind of a frame's data."""

    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2


_MESSAGE_HEADER = Struct(">iiqH16s")  # size, type, timestamp, attempts, id
_FRAME_HEADER = Struct(">ii")
_SIZE = Struct(">i")

_HEADER_LENGTH = _MESSAGE_HEADER.size
_MESSAGE_MIN = _HEADER_LENGTH - _SIZE.size
_HTTP = int.from_bytes(b"HTTP", "big")
_FIX = f"give nsqd's TCP port, {NSQD_TCP_PORT} by default"

# nsqd's responses are OK, an E_* line or the JSON of IDENTIFY: hundreds of bytes. The parser
# refuses larger responses before buffering them.
_REPLY_LIMIT = 1 << 20
_NO_LIMIT = 2**31 - 1

# Copying small frames together is faster; frames of at least this size are copied one by one.
_LARGE = 16 << 10


class FrameParser:
    """Splits a stream into messages and replies.

    ``max_msg_size`` is the maximum body of a message in bytes; at 0 any message is an error.
    ``address`` is for error texts.
    """

    __slots__ = ("_address", "_has_header", "_need", "_reads", "_size", "max_msg_size")

    def __init__(self, max_msg_size: int = _NO_LIMIT, address: Address | None = None) -> None:
        self.max_msg_size = max_msg_size
        self._address = address
        self._reads: list[bytes | memoryview] = []
        self._has_header = False  # whether the first read is the complete header of a message
        self._size = 0
        self._need = 0

    def parse(
        self,
        data: bytes | memoryview,
        messages: list[Message],
        replies: list[tuple[FrameType, bytes]],
    ) -> None:
        """Append every complete message and every complete reply, each in order of arrival.

        Keeps no reference to a view: you may reuse its memory.
        Raises ProtocolError at the first malformed frame, after appending the frames before it.
        """
        start = 0
        if self._reads:
            missing = self._need - self._size
            if len(data) < missing:
                self._reads.append(bytes(data))
                self._size += len(data)
                return
            if self._has_header:
                messages.append(self._complete(memoryview(data)[:missing]))
                start = missing
            else:
                data = self.take_rest() + data
        if isinstance(data, memoryview):
            start = self._take_large(data, start, messages)
            data, start = bytes(data[start:]), 0
        end = len(data)
        unpack, append = _MESSAGE_HEADER.unpack_from, messages.append
        limit = self.max_msg_size and self.max_msg_size + _MESSAGE_MIN
        message = FrameType.MESSAGE
        while end - start >= _HEADER_LENGTH:
            size, kind, timestamp, attempts, id_ = unpack(data, start)
            after = start + 4 + size
            if kind == message and _MESSAGE_MIN <= size <= limit and after <= end:
                append(Message(id_, data[start + _HEADER_LENGTH : after], timestamp, attempts))
                start = after
            elif (after := self._reply(data, start, end, replies)) > start:
                start = after
            else:
                break
        else:
            while (after := self._reply(data, start, end, replies)) > start:
                start = after
        if start < end:
            self._keep(data, start)

    def parse_reply(self, data: bytes) -> tuple[FrameType, bytes] | None:
        """Take one reply and keep the following bytes: their encoding may differ.

        Returns None while the reply is incomplete. Raises ProtocolError if it is malformed.
        """
        if self._reads:
            self._reads.append(data)
            self._size += len(data)
            if self._size < self._need:
                return None
            data = self.take_rest()
        replies: list[tuple[FrameType, bytes]] = []
        after = self._reply(data, 0, len(data), replies)
        if after:
            self._need = 0
        if after < len(data):
            self._reads.append(data[after:] if after else data)
            self._size = len(data) - after
        return replies[0] if replies else None

    def take_rest(self) -> bytes:
        """Remove and return the bytes of the incomplete frame."""
        rest = b"".join(self._reads)
        self._reads.clear()
        self._has_header = False
        self._size = 0
        return rest

    def _take_large(self, data: memoryview, start: int, messages: list[Message]) -> int:
        """Append the complete large messages at the start; return where the next frame begins."""
        limit = self.max_msg_size + _MESSAGE_MIN
        while len(data) - start >= _HEADER_LENGTH:
            size, kind, timestamp, attempts, id_ = _MESSAGE_HEADER.unpack_from(data, start)
            after = start + _SIZE.size + size
            if kind != FrameType.MESSAGE or not _LARGE <= size <= limit or after > len(data):
                break
            body = bytes(data[start + _HEADER_LENGTH : after])
            messages.append(Message(id_, body, timestamp, attempts))
            start = after
        return start

    def _keep(self, data: bytes, start: int) -> None:
        """Keep an incomplete frame; the header of a message is kept separately."""
        self._size = len(data) - start
        body = start + _HEADER_LENGTH
        if len(data) >= body and data[start + _SIZE.size + 3] == FrameType.MESSAGE:
            self._has_header = True
            self._reads += data[start:body], memoryview(data)[body:]
        else:
            self._reads.append(data[start:])

    def _complete(self, last: memoryview) -> Message:
        """Return the kept message, completed with the last part of its body."""
        header, *body = self._reads
        _, _, timestamp, attempts, id_ = _MESSAGE_HEADER.unpack(header)
        message = Message(id_, b"".join([*body, last]), timestamp, attempts)
        self._reads.clear()
        self._has_header = False
        return message

    def _reply(
        self, data: bytes, start: int, end: int, replies: list[tuple[FrameType, bytes]]
    ) -> int:
        """Parse one reply, or the start of a message; return the reply's end, or else ``start``.

        For an incomplete frame, sets the number of bytes needed for another try.
        """
        held = end - start
        if held < _SIZE.size:
            self._need = _SIZE.size
            return start
        (size,) = _SIZE.unpack_from(data, start)
        if size == _HTTP:
            raise ProtocolError(f"answered in HTTP: {_FIX}", self._address)
        if size < 4:
            raise ProtocolError(f"frame of {size} bytes: expected 4 or more", self._address)
        if held < _FRAME_HEADER.size:
            self._need = _FRAME_HEADER.size
            return start
        _, kind = _FRAME_HEADER.unpack_from(data, start)
        if kind not in (0, 1, 2):
            raise ProtocolError(f"unknown frame type {kind}: {_FIX}", self._address)
        self._check(size, FrameType(kind))
        after: int = start + _SIZE.size + size
        if kind == 2 or after > end:
            self._need = after - start
            return start
        replies.append((FrameType(kind), data[start + _FRAME_HEADER.size : after]))
        return after

    def _check(self, size: int, kind: FrameType) -> None:
        """Raise ProtocolError for an invalid frame, before more of it is read."""
        text = f"{kind.name.lower()} frame of {size} bytes"
        if kind is not FrameType.MESSAGE:
            if size > _REPLY_LIMIT:
                raise ProtocolError(f"{text}: expected 4 to {_REPLY_LIMIT}", self._address)
        elif not self.max_msg_size:
            raise ProtocolError(f"{text}: nothing was subscribed to", self._address)
        elif size < _MESSAGE_MIN:
            raise ProtocolError(f"{text}: expected {_MESSAGE_MIN} or more", self._address)
        elif size - _MESSAGE_MIN > self.max_msg_size:
            bound = f"the message is over --max-msg-size {format_size(self.max_msg_size)}"
            raise MessageSizeError(f"{text}: {bound}", self._address)
