from __future__ import annotations

import gzip
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.sinks.compression import (
    METHODS,
    Encoder,
    load_zstd,
    make_encoder,
    method_of,
)
from tests.support.binaries import needs

COMPRESSED = [name for name, method in METHODS.items() if method.levels]
EVERY = [(name, level) for name in COMPRESSED for level in METHODS[name].levels]
RECORDS = b"".join(b'{"n":%d,"path":"/items/%d"}\n' % (n, n * 7919 % 1000) for n in range(500))


def encoded(encoder: Encoder, *members: bytes) -> bytes:
    return b"".join(encoder.write(member) + encoder.finish() for member in members)


def decoded(name: str, data: bytes) -> bytes:
    """As Python's own reader of whole files has it."""
    if name == "gzip":
        return gzip.decompress(data)
    return load_zstd().decompress(data) if name == "zstd" else data


def shown(command: str, *args: str, data: bytes) -> bytes:
    path = needs(command, "that archives are read by others")
    return subprocess.run([path, *args], input=data, stdout=subprocess.PIPE, check=True).stdout


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_every_level_is_read_back_by_others(name: str, level: int) -> None:
    data = encoded(make_encoder(name, level), RECORDS, RECORDS[:100])
    command = ("zcat",) if name == "gzip" else ("zstd", "-dcq")
    assert shown(*command, data=data) == decoded(name, data) == RECORDS + RECORDS[:100]
    assert len(data) < len(RECORDS) / 3


@pytest.mark.parametrize("name", METHODS)
@given(members=st.lists(st.lists(st.binary(max_size=50), max_size=5), max_size=5))
def test_what_goes_in_comes_out(name: str, members: list[list[bytes]]) -> None:
    encoder = make_encoder(name)
    out = b""
    for member in members:
        out += b"".join(map(encoder.write, member)) + encoder.finish()
    plain = b"".join(b"".join(member) for member in members)
    assert (decoded(name, out) if out else b"") == plain


@pytest.mark.parametrize("name", METHODS)
def test_each_member_stands_alone(name: str) -> None:
    encoder = make_encoder(name)
    members = [encoded(encoder, plain) for plain in (b"one\n", b"two\n", b"three\n")]
    assert [decoded(name, each) for each in members] == [b"one\n", b"two\n", b"three\n"]


@pytest.mark.parametrize("name", METHODS)
def test_an_empty_member_is_never_written(name: str) -> None:
    encoder = make_encoder(name)
    assert encoder.finish() == b""
    assert encoder.write(b"") + encoder.finish() == b""
    assert encoded(encoder, b"one\n")
    assert encoder.finish() == b""
    assert encoder.write(b"") + encoder.finish() == b""


@pytest.mark.parametrize("name", METHODS)
def test_a_member_with_nothing_in_it_is_to_be_had_for_the_asking(name: str) -> None:
    encoder = make_encoder(name)
    empty = encoder.empty()
    assert bool(empty) == (name != "none")
    assert decoded(name, empty) == b""
    assert decoded(name, empty + encoded(encoder, b"one\n")) == b"one\n"


@pytest.mark.parametrize(("name", "command"), [("gzip", "zcat"), ("zstd", "zstd")])
def test_others_read_a_member_with_nothing_in_it(name: str, command: str) -> None:
    args = ("-dcq",) if command == "zstd" else ()
    assert shown(command, *args, data=make_encoder(name).empty()) == b""


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_discarded_member_leaves_no_trace_in_the_next(name: str) -> None:
    encoder = make_encoder(name)
    kept = encoded(encoder, b"one\n")
    encoder.write(RECORDS)
    encoder.discard()
    assert encoder.finish() == b""
    assert decoded(name, kept + encoded(encoder, b"two\n")) == b"one\ntwo\n"


def test_without_compression_nothing_is_held_back() -> None:
    encoder = make_encoder()
    assert (encoder.write(b"one\n"), encoder.finish()) == (b"one\n", b"")


@pytest.mark.parametrize("name", COMPRESSED)
def test_the_default_level_is_one_of_the_levels(name: str) -> None:
    level = METHODS[name].default
    assert level in METHODS[name].levels
    assert encoded(make_encoder(name), RECORDS) == encoded(make_encoder(name, level), RECORDS)


@pytest.mark.parametrize("level", METHODS["gzip"].levels)
@pytest.mark.parametrize("isal", [True, False])
def test_a_gzip_header_tells_neither_time_nor_name(
    level: int, isal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isal:
        monkeypatch.setitem(sys.modules, "isal", None)
    data = encoded(make_encoder("gzip", level), RECORDS)
    assert data[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
    assert gzip.decompress(data) == RECORDS


@pytest.mark.parametrize("level", METHODS["gzip"].levels)
def test_isal_stands_in_for_the_levels_it_has(level: int) -> None:
    isal_zlib = pytest.importorskip("isal.isal_zlib")
    stream = (isal_zlib if level <= 3 else zlib).compressobj(level, zlib.DEFLATED, 31)
    assert (
        encoded(make_encoder("gzip", level), RECORDS) == stream.compress(RECORDS) + stream.flush()
    )


@pytest.mark.parametrize("level", METHODS["gzip"].levels)
def test_without_isal_zlib_does_all_levels(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    stream = zlib.compressobj(level, zlib.DEFLATED, 31)
    assert (
        encoded(make_encoder("gzip", level), RECORDS) == stream.compress(RECORDS) + stream.flush()
    )


def test_a_zstd_frame_has_a_checksum() -> None:
    data = encoded(make_encoder("zstd"), RECORDS)
    with pytest.raises(load_zstd().ZstdError, match="checksum"):
        decoded("zstd", data[:-1] + bytes([data[-1] ^ 1]))


def test_a_missing_zstd_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(ConfigError, match="use gzip") as caught:
        make_encoder("zstd")
    assert "\n" not in str(caught.value)
    assert encoded(make_encoder("gzip"), b"one\n")


@pytest.mark.parametrize(
    ("name", "level", "text"),
    [
        ("lzma", None, "unknown compression 'lzma': expected none, gzip, zstd"),
        ("gzip", 0, "gzip has no level 0: expected 1 to 9"),
        ("gzip", 10, "gzip has no level 10: expected 1 to 9"),
        ("zstd", 20, "zstd has no level 20: expected 1 to 19"),
        ("none", 3, "a level needs a compression that has levels, and this one is none"),
    ],
)
def test_what_cannot_be_chosen_is_refused(name: str, level: int | None, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_encoder(name, level)
    assert str(caught.value) == text


@pytest.mark.parametrize("name", METHODS)
def test_the_end_of_a_name_tells_the_method(name: str) -> None:
    assert method_of(f"events.2026.log{METHODS[name].suffix}") == name
