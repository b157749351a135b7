"""Damage to small files: flipped bits in each byte, and a cut before each byte."""

from collections.abc import Iterator


def flipped(data: bytes, *, every_bit: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield each byte's offset and the data with one of its bits flipped, another bit in turn."""
    for at, byte in enumerate(data):
        for bit in range(8) if every_bit else (at % 8,):
            yield at, b"%b%c%b" % (data[:at], byte ^ 1 << bit, data[at + 1 :])


def cut(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each byte's offset and the data before it."""
    for at in range(len(data)):
        yield at, data[:at]
