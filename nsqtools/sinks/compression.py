"""Compression of archives: one complete gzip member or zstd frame per sync.

Members follow one another in the file, which readers take for one stream, as what Go's
nsq_to_file writes (``nsq_to_file/file_logger.go``, Sync). What a crash leaves behind is then whole
up to the last sync.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = [
    "GZIP_WINDOW",
    "METHODS",
    "Encoder",
    "Method",
    "load_zstd",
    "make_encoder",
    "method_of",
]

GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""The ``wbits`` by which zlib reads and writes a gzip header and trailer."""

_ISAL_LEVELS = range(1, 4)


@dataclass(frozen=True, slots=True)
class Method:
    """A value of ``--compress``. ``levels`` is empty where there is nothing to choose."""

    suffix: str
    levels: range = range(0)
    default: int = 0


METHODS = {
    "none": Method(""),
    "gzip": Method(".gz", range(1, 10), 6),
    "zstd": Method(".zst", range(1, 20), 3),  # beyond 19 a reader may want 128 MiB
}


class _Stream(Protocol):
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

    def __init__(self, start: Callable[[], _Stream]) -> None:
        self._start = start
        self._stream: _Stream | None = None

    def write(self, data: bytes) -> bytes:
        """Take more of the member; what can be written of it by now, often nothing."""
        if not data:
            return b""
        if self._stream is None:
            self._stream = self._start()
        return self._stream.compress(data)

    def finish(self) -> bytes:
        """The rest of the member, which is complete with it; nothing if none has begun."""
        if self._stream is None:
            return b""
        rest = self._stream.flush()
        self._stream = None
        return rest

    def discard(self) -> None:
        """Forget the member under way, of which the file was cut back."""
        self._stream = None

    def empty(self) -> bytes:
        """A whole member with nothing in it, for a file that stays empty; no bytes for none."""
        assert self._stream is None
        return self._start().flush()


def make_encoder(name: str = "none", level: int | None = None) -> Encoder:
    """An encoder for one file, at the method's default level unless told.

    Raises ConfigError for an unknown name, a level out of range and a library that is missing.
    """
    method = METHODS.get(name)
    if method is None:
        raise ConfigError(f"unknown compression {name!r}: expected {', '.join(METHODS)}")
    if level is None:
        level = method.default
    elif not method.levels:
        raise ConfigError(f"a level needs a compression that has levels, and this one is {name}")
    elif level not in method.levels:
        first, last = method.levels[0], method.levels[-1]
        raise ConfigError(f"{name} has no level {level}: expected {first} to {last}")
    match name:
        case "gzip":
            return Encoder(_gzip(level))
        case "zstd":
            return Encoder(_zstd(level))
    return Encoder(_Copy)


def _gzip(level: int) -> Callable[[], _Stream]:
    """Both write a header without time and name: the same bytes at every run."""
    if level in _ISAL_LEVELS:
        try:
            from isal import isal_zlib
        except ImportError:
            pass
        else:
            return lambda: isal_zlib.compressobj(level, isal_zlib.DEFLATED, GZIP_WINDOW)
    return lambda: zlib.compressobj(level, zlib.DEFLATED, GZIP_WINDOW)


def _zstd(level: int) -> Callable[[], _Stream]:
    zstd = load_zstd()
    parameter = zstd.CompressionParameter
    options = {parameter.compression_level: level, parameter.checksum_flag: 1}

    def start() -> _Stream:
        stream: _Stream = zstd.ZstdCompressor(options=options)
        return stream

    return start


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


def method_of(file_name: str) -> str:
    """The method that the end of a file's name tells."""
    for name, method in METHODS.items():
        if method.suffix and file_name.endswith(method.suffix):
            return name
    return "none"
