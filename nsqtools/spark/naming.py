"""What the names in a stream's staging say, written and read; see ledger.py for what they mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOLDER = re.compile(r"a-(\d{4,})-(\d{6,})-([0-9a-f]+)")
_SEALED = re.compile(r"sealed-(\d{4,})")
_SEGMENT = re.compile(r"seg-(\d{6,})-(\d{4,})-(\d+)-([0-9a-f]{8})\.arrow")
_BATCH = re.compile(r"(b|new-|done-|unread-)(\d{8,})(?:-[0-9a-f]{32})?")
_PARTITION = re.compile(r"p\d{4,}")
_ASIDE = re.compile(r"tmp-new-(\d{8,})-.*")
_AGAIN = re.compile(r"again-(\d{8,})-(\d+)-([0-9a-f]{32})\.arrow")


class Holder(NamedTuple):
    """A partition's directory while it is filled: by whom, and how many segments count."""

    generation: int
    segments: int
    attempt: str

    def __str__(self) -> str:
        return f"a-{self.generation:04}-{self.segments:06}-{self.attempt}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The holder of this name, if it is one."""
        found = _HOLDER.fullmatch(name)
        return cls(int(found[1]), int(found[2]), found[3]) if found else None

    @classmethod
    def latest(cls, names: Iterable[str]) -> Self | None:
        """The last of them: a listing during a rename can have both names."""
        return max(filter(None, map(cls.parse, names)), default=None)


NOBODY = Holder(0, 0, "0")

OFFSET = "offset.json"
"""The file in a batch that says what it was made for."""


class Segment(NamedTuple):
    """A file: which segment, of which generation, with how many rows and which CRC-32."""

    number: int
    generation: int
    rows: int
    crc: int

    def __str__(self) -> str:
        return f"seg-{self.number:06}-{self.generation:04}-{self.rows}-{self.crc:08x}.arrow"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The segment of this name, if it is one."""
        found = _SEGMENT.fullmatch(name)
        if not found:
            return None
        return cls(int(found[1]), int(found[2]), int(found[3]), int(found[4], 16))

    @classmethod
    def counted(cls, names: Iterable[str], count: int) -> list[Self]:
        """The segments below ``count``, in order, as far as they are there."""
        best: dict[int, Self] = {}
        for segment in filter(None, map(cls.parse, names)):
            if segment.number < count:
                best[segment.number] = max(segment, best.get(segment.number, segment))
        return [best[number] for number in sorted(best)]


class Again(NamedTuple):
    """A file of messages of a committed batch that may come again: how many they are."""

    batch: int
    rows: int
    tag: str

    def __str__(self) -> str:
        return f"again-{self.batch:08}-{self.rows}-{self.tag}.arrow"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The file of this name, if it is one."""
        found = _AGAIN.fullmatch(name)
        return cls(int(found[1]), int(found[2]), found[3]) if found else None


def unnamed(again: Again) -> str:
    """Such a file while it is written."""
    return f"new-{again}"


def unnamed_batch(name: str) -> int | None:
    """Of which batch such a file is; None for what is not one."""
    again = Again.parse(name.removeprefix("new-")) if name.startswith("new-again-") else None
    return again.batch if again else None


def sealed(generation: int) -> str:
    """A partition's directory once it is complete."""
    return f"sealed-{generation:04}"


def sealed_generation(names: Iterable[str]) -> int | None:
    """That of the complete directory, if there is one."""
    return next((int(found[1]) for name in names if (found := _SEALED.fullmatch(name))), None)


def manifest(generation: int) -> str:
    """The file that lists the segments of a complete partition."""
    return f"segments-{generation:04}.json"


def partition(k: int) -> str:
    """A partition's place in its batch."""
    return f"p{k:04}"


def partitions(names: Iterable[str]) -> list[str]:
    """The partitions among the names in a batch."""
    return [name for name in names if _PARTITION.fullmatch(name)]


def batch(number: int) -> str:
    """A batch in its stream."""
    return f"b{number:08}"


def new(number: int, tag: str) -> str:
    """A batch that is being made; ``tag`` is the hex of a uuid."""
    return f"new-{number:08}-{tag}"


def done(number: int, tag: str) -> str:
    """A batch that was committed."""
    return f"done-{number:08}-{tag}"


def unread(number: int, tag: str) -> str:
    """A batch that was committed without all of its rows; nobody removes it."""
    return f"unread-{number:08}-{tag}"


def aside_batch(name: str) -> int | None:
    """Of which batch a file is that was on its way into it (``stores.aside_of``)."""
    found = _ASIDE.fullmatch(name)
    return int(found[1]) if found else None


def batches(kind: str, names: Iterable[str]) -> dict[str, int]:
    """Names of a kind (``b``, ``new-``, ``done-``, ``unread-``) to the numbers of their batches."""
    found = filter(None, map(_BATCH.fullmatch, names))
    return {each[0]: int(each[2]) for each in found if each[1] == kind}
