"""Sealed objects: damage to any byte is found, and what has no checksum stays readable."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from nsqtools.checksum import sealed, unsealed

OBJECTS: list[dict[str, Any]] = [
    {},
    {"owes": ["--upload"], "name": "é\n", "size": 10**20, "at": 0.1, "none": None},
    {"files": {"a": {"crc32": "00000000"}}, "last": "89abcdef"},
]


def damaged(line: bytes) -> Iterator[bytes]:
    """Yield the line with each byte replaced by each other one, and cut at each byte."""
    for at, byte in enumerate(line):
        yield line[:at]
        for other in range(256):
            if other != byte:
                yield b"%b%c%b" % (line[:at], other, line[at + 1 :])


@pytest.mark.parametrize("value", OBJECTS)
def test_an_object_is_read_back_by_us_and_as_json(value: dict[str, Any]) -> None:
    line = sealed(value)
    assert b"\n" not in line
    assert unsealed(line) == unsealed(line + b"  \n") == value
    assert {**json.loads(line), "crc32": ""} == {**value, "crc32": ""}
    assert unsealed(json.dumps(json.loads(line), separators=(",", ":")).encode()) == value


@pytest.mark.parametrize("value", OBJECTS)
def test_damage_to_any_byte_is_found(value: dict[str, Any]) -> None:
    for line in damaged(sealed(value)):
        with contextlib.suppress(ValueError):
            assert unsealed(line) == value, line  # such as \u00E9 for \u00e9


@pytest.mark.parametrize("value", OBJECTS)
def test_an_object_without_a_checksum_is_read(value: dict[str, Any]) -> None:
    assert unsealed(json.dumps(value).encode()) == value


def test_tuples_and_keys_that_are_numbers_become_those_of_json() -> None:
    assert unsealed(sealed({"owes": (1,), "hours": {1: 2}})) == {"owes": [1], "hours": {"1": 2}}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        *((line, "not JSON") for line in (b"", b"\0" * 9, b"{}{}", b"\xff{}")),
        *((line, "not an object") for line in (b"[]", b"1", b"null")),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_object_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        unsealed(line)
