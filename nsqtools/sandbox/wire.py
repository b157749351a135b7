"""The server's side of the wire: bytes to commands, replies and messages to frames.

Sans-IO. What a command may say is checked here, in nsqd's words (protocol_v2.go); whether it may be
said now is for the owner to decide, who has the line before its body is read, as nsqd does.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from nsqtools.errors import ProtocolError, ServerError
from nsqtools.names import is_valid_name
from nsqtools.proto.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsqtools.sandbox.channel import Message

VERSION = "1.3.0"
MAGIC = b"  V2"

_MAX_LINE = 16 * 1024  # what nsqd's reader holds (client_v2.go, defaultBufferSize)
_ID_LENGTH = 16
_UINT64 = 1 << 64

SIZE = Struct(">i")
_FRAME_HEADER = Struct(">ii")
_MESSAGE_HEADER = Struct(">iiqH16s")  # size, type, timestamp, attempts, id
_MESSAGE_SIZE = _MESSAGE_HEADER.size - SIZE.size


def response(data: bytes) -> bytes:
    """A response frame."""
    return _FRAME_HEADER.pack(len(data) + 4, FrameType.RESPONSE) + data


def error(text: str) -> bytes:
    """An error frame; ``text`` as ``show`` made it."""
    data = text.encode("utf-8", "surrogateescape")
    return _FRAME_HEADER.pack(len(data) + 4, FrameType.ERROR) + data


def messages(batch: Sequence[Message]) -> bytes:
    """A message frame for each message."""
    pack, kind = _MESSAGE_HEADER.pack, FrameType.MESSAGE.value
    parts = [b""] * (2 * len(batch))
    parts[::2] = [
        pack(_MESSAGE_SIZE + len(m.body), kind, m.timestamp, m.attempts, m.id) for m in batch
    ]
    parts[1::2] = [m.body for m in batch]
    return b"".join(parts)


def show(data: bytes) -> str:
    """Bytes of a client in an error's text; ``error`` turns them back into what they were."""
    return data.decode("utf-8", "surrogateescape")


def quote(data: bytes) -> str:
    """As Go's ``%q``."""
    return '"' + "".join(map(_quote_character, show(data))) + '"'


_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def _quote_character(char: str) -> str:
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    if 0xDC80 <= code <= 0xDCFF:  # an undecodable byte
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def to_number(text: bytes) -> int | None:
    """An unsigned decimal modulo 2**64, or None (internal/protocol/byte_base10.go)."""
    if not text:
        return 0
    return _fold(text) if text.isdigit() else None


def _fold(digits: bytes) -> int:
    number = 0
    for start in range(0, len(digits), 1000):  # int() refuses thousands of digits at once
        piece = digits[start : start + 1000]
        number = (number * 10 ** len(piece) + int(piece)) % _UINT64
    return number


def to_signed(number: int) -> int:
    """The int64 of the same 64 bits."""
    number %= _UINT64
    return number - _UINT64 if number >> 63 else number


PUBLISHING = frozenset({b"PUB", b"MPUB", b"DPUB"})
WITH_BODY = frozenset({b"IDENTIFY", b"AUTH"}) | PUBLISHING


@dataclass(slots=True, eq=False)
class Command:
    """One command: the line's words, and the body or bodies behind it."""

    words: list[bytes]
    bodies: Sequence[bytes] = ()
    """None as long as they have not come."""
    delay: int = 0
    """Of DPUB, in ms."""

    @property
    def name(self) -> bytes:
        """The first word."""
        return self.words[0]


class CommandParser:
    """Splits what a client sends into commands; sizes are in bytes.

    ``next`` gives each line as a command. One with a body is then passed to ``expect``, and
    ``next`` gives it once more when the body has come.
    """

    __slots__ = (
        "_bodies",
        "_command",
        "_count",
        "_data",
        "_max_body_size",
        "_max_msg_size",
        "_need",
        "_pos",
        "_reads",
        "_size",
        "_step",
    )

    def __init__(self, *, max_msg_size: int, max_body_size: int) -> None:
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._data = b""
        self._pos = 0
        self._reads: list[bytes] = []
        self._size = 0  # bytes not taken yet, those of the reads too
        self._need = 1
        self._command: Command | None = None  # whose body is awaited
        self._step: Callable[[Command], Command | None] = self._sized
        self._count = 0  # bodies of the MPUB
        self._bodies: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take bytes."""
        self._reads.append(data)
        self._size += len(data)

    def clear(self) -> None:
        """Forget bytes that are no command yet: what follows comes over another layer."""
        self._data, self._pos, self._size, self._need = b"", 0, 0, 1
        self._reads.clear()

    def expect(self, command: Command, *, counted: bool = False) -> None:
        """Read the body of a command next, that of an MPUB without its size if ``counted``."""
        self._command, self._need = command, SIZE.size
        self._step = self._counted if counted else self._sized

    def next(self) -> Command | None:
        """The next line, or the command whose body was expected; None while it is incomplete.

        Raises ServerError for a body that nsqd would refuse, ProtocolError for a line so long that
        it would hang up without a word. All such errors are final.
        """
        if self._size < self._need:
            return None
        if self._reads:
            rest = self._data[self._pos :]
            self._data = b"".join((rest, *self._reads)) if rest else b"".join(self._reads)
            self._pos = 0
            self._reads.clear()
        if self._command:
            return self._step(self._command)
        start = self._pos
        end = self._data.find(b"\n", start)
        if end < 0 or end - start >= _MAX_LINE:
            if self._size >= _MAX_LINE:
                raise ProtocolError("a line without an end")
            self._need = self._size + 1
            return None
        self._advance(end + 1 - start)
        return Command(self._data[start:end].removesuffix(b"\r").split(b" "))

    def end(self) -> str:
        """What nsqd says of a stream that ends here: an error's text, or nothing."""
        if not self._command:
            return ""
        name, has_size = show(self._command.name), self._size >= SIZE.size
        if self._step == self._sized:
            publishes_one = name in ("PUB", "DPUB")
            code = "E_BAD_MESSAGE" if publishes_one else "E_BAD_BODY"
            message = " message" if publishes_one else ""
            return f"{code} {name} failed to read{message} body{'' if has_size else ' size'}"
        if self._step == self._counted:
            return "E_BAD_BODY MPUB failed to read message count"
        if has_size:
            return "E_BAD_MESSAGE MPUB failed to read message body"
        return f"E_BAD_MESSAGE MPUB failed to read message({len(self._bodies)}) body size"

    def _advance(self, length: int) -> None:
        self._pos += length
        self._size -= length
        self._need = 1

    def _number(self) -> int | None:
        """The int32 that is next, without taking it; None while it is incomplete."""
        if self._size < SIZE.size:
            self._need = SIZE.size
            return None
        number: int = SIZE.unpack_from(self._data, self._pos)[0]
        return number

    def _sized(self, command: Command) -> Command | None:
        """Read the size and, but for MPUB, the body."""
        size = self._number()
        if size is None:
            return None
        name = show(command.name)
        if name in ("PUB", "DPUB"):
            if size <= 0:
                raise ServerError(f"E_BAD_MESSAGE {name} invalid message body size {size}")
            if size > self._max_msg_size:
                limit = f"{size} > {self._max_msg_size}"
                raise ServerError(f"E_BAD_MESSAGE {name} message too big {limit}")
        elif size > self._max_body_size:
            raise ServerError(f"E_BAD_BODY {name} body too big {size} > {self._max_body_size}")
        elif size <= 0:
            raise ServerError(f"E_BAD_BODY {name} invalid body size {size}")
        if name == "MPUB":
            self._advance(SIZE.size)
            self._step = self._counted
            return self._counted(command)
        whole = SIZE.size + size
        if self._size < whole:
            self._need = whole
            return None
        start = self._pos + SIZE.size
        self._advance(whole)
        return self._complete(command, (self._data[start : start + size],))

    def _counted(self, command: Command) -> Command | None:
        """Read how many bodies an MPUB has, and then them."""
        count = self._number()
        if count is None:
            return None
        if not 0 < count <= (self._max_body_size - 4) // 5:
            raise ServerError(f"E_BAD_BODY MPUB invalid message count {count}")
        self._advance(SIZE.size)
        self._count, self._bodies = count, []
        self._step = self._listed
        return self._listed(command)

    def _listed(self, command: Command) -> Command | None:
        """Read the bodies of MPUB; its body size is not looked at again, as nsqd does not."""
        bodies, limit = self._bodies, self._max_msg_size
        data, unpack = self._data, SIZE.unpack_from
        start, end = self._pos, len(self._data)
        need = 1
        while len(bodies) < self._count:
            if end - start < SIZE.size:
                need = SIZE.size
                break
            (size,) = unpack(data, start)
            if size <= 0:
                number = len(bodies)
                raise ServerError(f"E_BAD_MESSAGE MPUB invalid message({number}) body size {size}")
            if size > limit:
                raise ServerError(f"E_BAD_MESSAGE MPUB message too big {size} > {limit}")
            after = start + SIZE.size + size
            if after > end:
                need = SIZE.size + size
                break
            bodies.append(data[start + SIZE.size : after])
            start = after
        self._advance(start - self._pos)
        self._need = need
        return self._complete(command, bodies) if len(bodies) == self._count else None

    def _complete(self, command: Command, bodies: Sequence[bytes]) -> Command:
        self._command, command.bodies = None, bodies
        return command


def split_bodies(body: bytes, *, max_msg_size: int, max_body_size: int) -> Sequence[bytes]:
    """The bodies in that of an MPUB; what follows the last is ignored (protocol_v2.go, readMPUB).

    Raises ServerError.
    """
    parser = CommandParser(max_msg_size=max_msg_size, max_body_size=max_body_size)
    parser.expect(Command([b"MPUB"]), counted=True)
    parser.feed(body)
    if command := parser.next():
        return command.bodies
    raise ServerError(parser.end())


def check_publish(command: Command, max_req_timeout: float) -> None:
    """Check the line of PUB, MPUB or DPUB, and set its delay, of ``max_req_timeout`` s at most.

    Raises ServerError.
    """
    name, words = show(command.name), command.words
    if len(words) < (3 if name == "DPUB" else 2):
        raise ServerError(f"E_INVALID {name} insufficient number of parameters")
    twice = "E_BAD_TOPIC " if name == "MPUB" else ""
    if not is_name(words[1]):
        text = f"{name} topic name {quote(words[1])} is not valid"
        raise ServerError(f"E_BAD_TOPIC {twice}{text}")
    if name == "DPUB":
        delay = to_number(words[2])
        if delay is None:
            raise ServerError(f"E_INVALID DPUB could not parse timeout {show(words[2])}")
        longest = round(max_req_timeout * 1000)
        if not 0 <= to_signed(delay * 10**6) <= longest * 10**6:
            raise ServerError(f"E_INVALID DPUB timeout {delay} out of range 0-{longest}")
        command.delay = to_signed(delay * 10**6) // 10**6


def is_name(word: bytes) -> bool:
    """Whether this may be a topic or channel."""
    return word.isascii() and is_valid_name(word.decode())


def message_id(words: list[bytes], count: int) -> bytes:
    """The id that FIN, REQ or TOUCH names, of at least ``count`` words; raises ServerError."""
    if len(words) < count:
        raise ServerError(f"E_INVALID {show(words[0])} insufficient number of params")
    if len(words[1]) != _ID_LENGTH:
        raise ServerError("E_INVALID invalid message ID")
    return words[1]
