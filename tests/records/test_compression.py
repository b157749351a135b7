"""Members of compressed files: written, and read back in pieces."""

import gzip
import io
import subprocess
import sys

import pytest

from nsqtools.errors import ConfigError, RecordError
from nsqtools.records.compression import METHODS, Encoder, load_zstd, make_encoder, plain_chunks
from tests.support.binaries import needs

LEVELS = {"gzip": (1, 6, 9), "zstd": (1, 3, 19)}
COMPRESSED = list(LEVELS)
EVERY = [(name, level) for name in COMPRESSED for level in LEVELS[name]]
RECORDS = b"".join(b'{"n":%d,"path":"/items/%d"}\n' % (n, n * 7919 % 1000) for n in range(500))


def encoded(encoder: Encoder, *members: bytes) -> bytes:
    return b"".join(encoder.write(member) + encoder.finish() for member in members)


def decoded(name: str, data: bytes) -> bytes:
    """As Python's own reader of whole files has it."""
    if name == "gzip":
        return gzip.decompress(data)
    return load_zstd().decompress(data) if name == "zstd" else data


def shown(name: str, data: bytes) -> bytes:
    """As the tool that everybody has shows it."""
    path = needs("zcat" if name == "gzip" else "zstd", "that archives are read by others")
    args = [] if name == "gzip" else ["-dcq"]
    return subprocess.run([path, *args], input=data, stdout=subprocess.PIPE, check=True).stdout


class TestWriting:
    @pytest.mark.parametrize(("name", "level"), EVERY)
    def test_a_level_is_read_back_by_others(self, name: str, level: int) -> None:
        data = encoded(make_encoder(name, level), RECORDS, RECORDS[:100])
        assert decoded(name, data) == RECORDS + RECORDS[:100]
        assert len(data) < len(RECORDS) / 3
        empty = make_encoder(name).empty()
        assert shown(name, data + empty) == RECORDS + RECORDS[:100]

    @pytest.mark.parametrize("name", METHODS)
    def test_an_empty_member_is_written_only_when_it_is_asked_for(self, name: str) -> None:
        encoder = make_encoder(name)
        for data in (b"one\n", b""):
            assert encoder.write(b"") + encoder.finish() == b""
            encoded(encoder, data)
        encoder.write(RECORDS)
        encoder.discard()  # leaves no trace in the next
        assert encoder.finish() == b""
        empty = encoder.empty()
        assert bool(empty) == (name != "none")
        assert decoded(name, empty) == b""
        assert decoded(name, empty + encoded(encoder, b"one\n")) == b"one\n"


class TestMethods:
    def test_without_isal_gzip_is_that_of_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "isal", None)
        data = encoded(make_encoder("gzip", 1), RECORDS)
        assert data[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # with neither time nor name
        assert decoded("gzip", data) == RECORDS

    def test_a_missing_zstd_is_told_with_the_remedy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "backports", None)
        monkeypatch.setitem(sys.modules, "compression", None)
        with pytest.raises(ConfigError, match="choose gzip") as caught:
            make_encoder("zstd")
        assert "\n" not in str(caught.value)
        assert encoded(make_encoder("gzip"), b"one\n")


class TestReading:
    @pytest.mark.parametrize("name", METHODS)
    def test_the_plain_bytes_of_all_members_come_in_order_from_where_the_file_stands(
        self, name: str
    ) -> None:
        encoder = make_encoder(name)
        first = encoded(encoder, b"one\n")
        file = io.BytesIO(first + encoded(encoder, RECORDS * 50, b"two\n") + encoder.empty())
        assert b"".join(plain_chunks(file, name)) == b"one\n" + RECORDS * 50 + b"two\n"
        file.seek(len(first))
        assert b"".join(plain_chunks(file, name)) == RECORDS * 50 + b"two\n"
        assert list(plain_chunks(io.BytesIO(), name)) == []

    @pytest.mark.parametrize("name", COMPRESSED)
    def test_a_torn_or_damaged_file_gives_what_is_whole_before_the_error(self, name: str) -> None:
        first, second = (encoded(make_encoder(name), plain) for plain in (b"one\n", b"two\n"))
        for bad in (second[:-1], b"garbage of more than a few bytes"):
            chunks = plain_chunks(io.BytesIO(first + bad), name)
            assert next(chunks) == b"one\n"
            with pytest.raises(RecordError, match=rf" 2 at byte {len(first)}: "):
                list(chunks)
