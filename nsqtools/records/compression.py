"""Compression of archives: one complete gzip member or zstd frame per sync.

Members follow one another in the file, which readers take for one stream, as what Go's
nsq_to_file writes (``nsq_to_file/file_logger.go``, Sync). What a crash leaves behind is then whole
up to the last sync: the compressed bytes themselves tell where a member ends, by the trailer of a
gzip member and the checksum of a zstd frame.
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
"""The ``wbits`` by which zlib reads and writes a gzip header and trailer."""
_ISAL_LEVELS = range(1, 4)

_READ = 1 << 18
_READ_COMPRESSED = 1 << 15  # every member copies what is left of it
_PIECE = 1 << 20

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_CHECKSUM = 1 << 2
_ZSTD_HEAD = 5


@dataclass(frozen=True, slots=True)
class Method:
    """A value of ``--compress``; ``noun`` is what a member is called."""

    suffix: str = ""
    noun: str = ""


METHODS = {
    "none": Method(),
    "gzip": Method(".gz", "gzip member"),
    "zstd": Method(".zst", "zstd frame"),
}


def method_of(file_name: str) -> str:
    """The method that the end of a file's name tells."""
    for name, method in METHODS.items():
        if method.suffix and file_name.endswith(method.suffix):
            return name
    return "none"


def load_zstd() -> ModuleType:
    """Python's own zstd module or its backport; raises ConfigError where there is none."""
    if sys.version_info >= (3, 14):
        try:
            from compression import zstd
        except ImportError:
            raise ConfigError("this Python was built without zstd: use gzip") from None
    else:
        try:
            from backports import zstd
        except ImportError:
            raise ConfigError(
                "zstd needs the package backports.zstd: pip install backports.zstd, or use gzip"
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
    """Turns the plain bytes of one file into compressed ones, member by member.

    A member begins with the first byte after ``finish`` and an empty one is never made, so an idle
    encoder holds no buffers. Give it the join of many records: a call has a price. A call on much
    data releases the GIL.
    """

    def __init__(self, start: Callable[[], _Compressor]) -> None:
        self._start = start
        self._member: _Compressor | None = None

    def write(self, data: bytes) -> bytes:
        """Take more of the member; what can be written of it by now, often nothing."""
        if not data:
            return b""
        if self._member is None:
            self._member = self._start()
        return self._member.compress(data)

    def finish(self) -> bytes:
        """The rest of the member, which is complete with it; nothing if none has begun."""
        if self._member is None:
            return b""
        rest = self._member.flush()
        self._member = None
        return rest

    def discard(self) -> None:
        """Forget the member under way, of which the file was cut back."""
        self._member = None

    def empty(self) -> bytes:
        """A whole member with nothing in it, for a file that stays empty; no bytes for none."""
        assert self._member is None
        return self._start().flush()


def make_encoder(name: str = "none", level: int = 6) -> Encoder:
    """An encoder for one file; ``name`` is in METHODS, ``level`` up to 9 for gzip and 19 for zstd.

    Beyond 19 a reader may want 128 MiB. Raises ConfigError for a library that is missing.
    """
    match name:
        case "gzip":
            return Encoder(_gzip(level))
        case "zstd":
            return Encoder(_zstd(level))
    return Encoder(_Copy)


def _gzip(level: int) -> Callable[[], _Compressor]:
    """Both write a header without time and name: the same bytes at every run."""
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
    """A gzip member or zstd frame is not all there, and what there is has no fault."""


def plain_chunks(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """The plain bytes of an archive, from where it stands, in pieces of at most 1 MiB.

    ``compression`` is a name in METHODS. Raises RecordError, naming member and byte, for a file
    that is torn or damaged: what was yielded before may then reach into the damaged member. Raises
    ConfigError as ``require``, and OSError.
    """
    if compression == "none":
        while data := file.read(_READ):
            yield data
        return
    for data, _ in unpacked(file, compression, strict=False):
        if data:
            yield data


def require(compression: str) -> None:
    """Raise ConfigError if nothing here can unpack it."""
    if compression != "none":
        _decompressor(compression)


def unpacked(
    file: BinaryIO, compression: str, *, strict: bool = True
) -> Iterator[tuple[bytes, int]]:
    """Plain bytes and, with the last of a member, where in the file that ends, or else 0.

    Raises RecordError, naming member and byte, for a damaged member, of which some may have been
    yielded, and ConfigError as ``require``. ``strict`` takes a zstd frame without a checksum (RFC
    8878, 3.1.1.1.1.5) for damaged, as all of ours have one: without it zeros pass for empty blocks,
    and join what is before them to what is after.
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
                    raise CutShortError(f"{place}: the file ends in it")
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


class _Decompressor(Protocol):
    """Unpacks one member, as the decompressors of ``bz2``, ``lzma`` and ``zstd``."""

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
    """What unpacks a member, and what it raises for a damaged one; raises ConfigError."""
    if compression == "gzip":
        return _GzipDecompressor, zlib.error
    zstd = load_zstd()
    return zstd.ZstdDecompressor, zstd.ZstdError


def _lacks_checksum(head: bytes) -> bool:
    is_zstd = len(head) == _ZSTD_HEAD and head.startswith(_ZSTD_MAGIC)
    return is_zstd and not head[4] & _ZSTD_CHECKSUM
