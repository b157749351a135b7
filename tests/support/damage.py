"""Damage to small files: a flipped bit in each byte, and a cut before each byte."""

from collections.abc import Iterator


def flipped(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each byte's offset and the data with one of its bits flipped, another bit in turn."""
    for at, byte in enumerate(data):
        yield at, b"%b%c%b" % (data[:at], byte ^ 1 << at % 8, data[at + 1 :])


def cut(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each byte's offset and the data before it."""
    for at in range(len(data)):
        yield at, data[:at]
