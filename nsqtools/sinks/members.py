"""Archives unpacked, member by member, in pieces of bounded size.

What ends a member is known from the compressed bytes: the trailer of a gzip member, the checksum
of a zstd frame.
"""

from __future__ import annotations

import itertools
import zlib
from typing import TYPE_CHECKING, Protocol

from nsqtools.errors import ConfigError, RecordError
from nsqtools.sinks.compression import GZIP_WINDOW, METHODS, load_zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

__all__ = ["NOUNS", "CutShortError", "plain_chunks", "unpacked"]

NOUNS = {"gzip": "gzip member", "zstd": "zstd frame"}
"""What a member is called, by compression."""

_READ = 1 << 18
_READ_COMPRESSED = 1 << 15  # every member copies what is left of it
_PIECE = 1 << 20

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_CHECKSUM = 1 << 2


def plain_chunks(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """The plain bytes of an archive, from where it stands, in pieces of at most 1 MiB.

    ``compression`` is a name in ``compression.METHODS``. Raises RecordError, naming member and
    byte, for a file that is torn or damaged: what was yielded before may then reach into the
    damaged member. Raises ConfigError for an unknown compression, and OSError.
    """
    if compression == "none":
        while data := file.read(_READ):
            yield data
        return
    for data, _ in unpacked(file, compression, strict=False):
        if data:
            yield data


def unpacked(
    file: BinaryIO, compression: str, *, strict: bool = True
) -> Iterator[tuple[bytes, int]]:
    """Plain bytes and, with the last of a member, where in the file that ends, or else 0.

    Raises RecordError, naming member and byte, for a damaged member, of which some may have been
    yielded, and ConfigError for a compression that is unknown or lacks its library. ``strict``
    takes a zstd frame without a checksum for damaged.
    """
    start = _starter(compression, strict)
    offset = 0
    data = b""
    for number in itertools.count(1):
        if not data:
            data = file.read(_READ_COMPRESSED)
            offset += len(data)
            if not data:
                return
        place = f"{NOUNS[compression]} {number} at byte {offset - len(data)}"
        member = start()
        while not member.eof:
            if not data and member.needs_input:
                data = file.read(_READ_COMPRESSED)
                offset += len(data)
                if not data:
                    raise CutShortError(f"{place}: the file ends in it")
            try:
                plain, data = member.decompress(data), b""
            except RecordError as error:
                raise RecordError(f"{place}: {error}") from None
            if not member.eof:
                yield plain, 0
        data = member.unused_data
        yield plain, offset - len(data)


class CutShortError(RecordError):
    """A gzip member or zstd frame is not all there, and what there is has no fault."""


class _Member(Protocol):
    """One gzip member or zstd frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes) -> bytes:
        """At most _PIECE plain bytes; raises RecordError."""


def _starter(compression: str, strict: bool) -> Callable[[], _Member]:
    match compression:
        case "gzip":
            return _GzipMember
        case "zstd":
            zstd = load_zstd()
            return lambda: _ZstdFrame(zstd.ZstdDecompressor(), zstd.ZstdError, strict)
    raise ConfigError(f"unknown compression {compression!r}: expected {', '.join(METHODS)}")


class _GzipMember:
    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(GZIP_WINDOW)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes) -> bytes:
        try:
            return self._inflate.decompress(self._inflate.unconsumed_tail + data, _PIECE)
        except zlib.error as error:
            raise RecordError(str(error).rpartition(": ")[2]) from None


def _lacks_checksum(head: bytes) -> bool:
    return head.startswith(_ZSTD_MAGIC) and not head[4] & _ZSTD_CHECKSUM


class _ZstdDecompressor(_Member, Protocol):
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _ZstdFrame:
    """A frame with a checksum (RFC 8878, 3.1.1.1.1.5), as ours all are.

    Without one zeros pass for empty blocks, and join what comes before to what comes after.
    """

    def __init__(self, frame: _ZstdDecompressor, error: type[Exception], strict: bool) -> None:
        self._frame = frame
        self._error = error
        self._strict = strict
        self._head = b""

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def needs_input(self) -> bool:
        return self._frame.needs_input

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data

    def decompress(self, data: bytes) -> bytes:
        if len(self._head) < 5 and self._strict:
            self._head += data[: 5 - len(self._head)]
            if len(self._head) == 5 and _lacks_checksum(self._head):
                raise RecordError("it has no checksum")
        try:
            return self._frame.decompress(data, _PIECE)
        except self._error as error:
            raise RecordError(str(error).rpartition(": ")[2]) from None
