"""Compression of archives: one complete gzip member or zstd frame per sync.

Members follow each other in the file, and readers decompress them as a single stream, as with Go's
nsq_to_file (``nsq_to_file/file_logger.go``, Sync). After a crash the file is intact up to the last
sync: the trailer of a gzip member or the checksum of a zstd frame shows where a complete member
ends.
"""

from __future__ import annotations

import itertools
import sys
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from nsqtools.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import BinaryIO

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""The ``wbits`` with which zlib reads and writes gzip headers and trailers."""
_ISAL_LEVELS = range(1, 4)

_READ = 1 << 18
_READ_COMPRESSED = 1 << 15  # small, because each member copies the rest of the chunk
_PIECE = 1 << 20

_GZIP_MAGIC = b"\x1f\x8b\x08\0"  # without a name and the like
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_CHECKSUM = 1 << 2
_ZSTD_HEAD = 5


@dataclass(frozen=True, slots=True)
class Method:
    """A value of ``--compress``; ``noun`` names a member, and those of to-file begin with
    ``magic``.
    """

    suffix: str = ""
    noun: str = ""
    magic: bytes = b""


METHODS = {
    "none": Method(),
    "gzip": Method(".gz", "gzip member", _GZIP_MAGIC),
    "zstd": Method(".zst", "zstd frame", _ZSTD_MAGIC + b"\x04"),  # a checksum, no size
}


def method_of(file_name: str) -> str:
    """Return the compression method for the suffix of a file name.

    A final ``.part``, as in the names of files still being written, is ignored.
    """
    file_name = file_name.removesuffix(".part")
    for name, method in METHODS.items():
        if method.suffix and file_name.endswith(method.suffix):
            return name
    return "none"


def load_zstd() -> ModuleType:
    """Return Python's own zstd module or its backport; raises ConfigError if neither exists."""
    if sys.version_info >= (3, 14):
        try:
            from compression import zstd
        except ImportError:
            raise ConfigError("this Python was built without zstd: choose gzip") from None
    else:
        try:
            from backports import zstd
        except ImportError:
            raise ConfigError(
                f"zstd needs the package backports.zstd: run {sys.executable} -m pip install "
                "backports.zstd, or choose gzip"
            ) from None
    module: ModuleType = zstd
    return module


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Copy:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class Encoder:
    """Compresses the data of one file, member by member.

    A member begins with the first byte after ``finish``. Empty members are never written, so an
    idle encoder holds no buffers. Join many records for each call, as every call has a cost. A
    call with much data releases the GIL.
    """

    def __init__(self, start: Callable[[], _Compressor]) -> None:
        self._start = start
        self._member: _Compressor | None = None

    def write(self, data: bytes) -> bytes:
        """Add data to the member and return the compressed bytes so far, often no bytes."""
        if not data:
            return b""
        if self._member is None:
            self._member = self._start()
        return self._member.compress(data)

    def finish(self) -> bytes:
        """Complete the member and return its rest, or no bytes if no member has begun."""
        if self._member is None:
            return b""
        rest = self._member.flush()
        self._member = None
        return rest

    def discard(self) -> None:
        """Forget the current member, after the file was cut back to the previous one."""
        self._member = None

    def empty(self) -> bytes:
        """Return a complete member without data, for an empty file; no bytes if uncompressed."""
        assert self._member is None
        member = self._start()
        return member.compress(b"") + member.flush()  # without its size, as all others


def make_encoder(name: str = "none", level: int = 6) -> Encoder:
    """Return an encoder for one file.

    ``name`` is a key of METHODS; ``level`` is at most 9 for gzip and 19 for zstd, because readers
    may need 128 MiB for higher levels. Raises ConfigError if the library is not installed.
    """
    match name:
        case "gzip":
            return Encoder(_gzip(level))
        case "zstd":
            return Encoder(_zstd(level))
    return Encoder(_Copy)


def _gzip(level: int) -> Callable[[], _Compressor]:
    """Return a factory of compressors.

    zlib and isal both write headers without time and name: the output is reproducible.
    """
    make: Callable[..., _Compressor] = zlib.compressobj
    if level in _ISAL_LEVELS:
        with suppress(ImportError):
            from isal.isal_zlib import compressobj as make
    return partial(make, level, zlib.DEFLATED, _GZIP_WINDOW)


def _zstd(level: int) -> Callable[[], _Compressor]:
    zstd = load_zstd()
    parameter = zstd.CompressionParameter
    options = {parameter.compression_level: level, parameter.checksum_flag: 1}
    return partial(zstd.ZstdCompressor, options=options)


class CutShortError(RecordError):
    """The file ends within an otherwise valid gzip member or zstd frame."""


def plain_chunks(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of an archive, from its current position, in pieces of at most 1
    MiB.

    ``compression`` is a key of METHODS. Raises RecordError, with member and byte, for a truncated
    or damaged file; bytes of the damaged member may have been yielded before. Raises ConfigError if
    the library is not installed, and OSError.
    """
    if compression == "none":
        while data := file.read(_READ):
            yield data
        return
    for data, _ in unpacked(file, compression, strict=False):
        if data:
            yield data


def require(compression: str) -> None:
    """Raise ConfigError if the library for this compression is not installed."""
    if compression != "none":
        _decompressor(compression)


def unpacked(
    file: BinaryIO, compression: str, *, strict: bool = True
) -> Iterator[tuple[bytes, int]]:
    """Yield decompressed bytes and, with the last piece of a member, its end in the file; otherwise
    0.

    Raises RecordError, with member and byte, for a damaged member; parts of it may have been
    yielded before. Raises ConfigError as ``require`` does. ``strict`` refuses zstd frames without a
    checksum (RFC 8878, 3.1.1.1.1.5), since all frames of to-file have one: without a checksum,
    zeros would pass for empty blocks and join the data before and after them.
    """
    start, fault = _decompressor(compression)
    offset = 0
    data = b""
    for number in itertools.count(1):
        if not data:
            data = file.read(_READ_COMPRESSED)
            offset += len(data)
            if not data:
                return
        place = f"{METHODS[compression].noun} {number} at byte {offset - len(data)}"
        member = start()
        head = b""
        while not member.eof:
            if not data and member.needs_input:
                data = file.read(_READ_COMPRESSED)
                offset += len(data)
                if not data:
                    raise CutShortError(f"{place}: the file ends within it")
            if len(head) < _ZSTD_HEAD:
                head += data[: _ZSTD_HEAD - len(head)]
                if strict and _lacks_checksum(head):
                    raise RecordError(f"{place}: it has no checksum")
            try:
                plain, data = member.decompress(data, _PIECE), b""
            except fault as error:
                raise RecordError(f"{place}: {str(error).rpartition(': ')[2]}") from None
            if not member.eof:
                yield plain, 0
        data = member.unused_data
        yield plain, offset - len(data)


def whole_members(file: BinaryIO, compression: str) -> tuple[int, str]:
    """Count the plain bytes of whole members.

    Returns their number and the fault of the next member, if any. A checksum follows its data: only
    after this pass are the bytes safe to use. Raises ConfigError as ``require`` does.
    """
    good = total = 0
    try:
        for data, end in unpacked(file, compression, strict=False):
            total += len(data)
            if end:
                good = total
    except RecordError as error:
        return good, str(error)
    return good, ""


def next_member(file: BinaryIO, start: int, compression: str) -> int:
    """Return the offset of the next whole member in a file, from an offset on; 0 for none.

    A body may contain whole members, too. Therefore others have to follow, up to the end of the
    file or to one that is not whole. Raises ConfigError as ``require`` does.
    """
    magic = METHODS[compression].magic
    while True:
        file.seek(start)
        window = file.read(_READ)
        found = window.find(magic)
        if found >= 0:
            if _are_members(file, start + found, compression):
                return start + found
            start += found + 1
        elif len(window) < _READ:
            return 0
        else:
            start += len(window) - len(magic) + 1


def _are_members(file: BinaryIO, start: int, compression: str) -> bool:
    """Whether whole members follow each other from an offset on, up to one that is not whole."""
    file.seek(start)
    good = 0
    try:
        for _, end in unpacked(file, compression):
            good = end or good
    except RecordError:
        pass
    file.seek(start + good)
    behind = file.read(len(METHODS[compression].magic))
    return bool(good) and METHODS[compression].magic.startswith(behind.rstrip(b"\0"))


class _Decompressor(Protocol):
    """Decompresses one member, with the interface of ``bz2``, ``lzma`` and ``zstd``."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _GzipDecompressor:
    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP_WINDOW)

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int = 0) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)


def _decompressor(compression: str) -> tuple[Callable[[], _Decompressor], type[Exception]]:
    """Return a factory of decompressors, and their exception for a damaged member."""
    if compression == "gzip":
        return _GzipDecompressor, zlib.error
    zstd = load_zstd()
    return zstd.ZstdDecompressor, zstd.ZstdError


def _lacks_checksum(head: bytes) -> bool:
    is_zstd = len(head) == _ZSTD_HEAD and head.startswith(_ZSTD_MAGIC)
    return is_zstd and not head[4] & _ZSTD_CHECKSUM
