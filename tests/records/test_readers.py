from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import RecordError
from nsqtools.records.envelope import timestamp_of
from nsqtools.records.readers import Delimited, JsonLines, LengthPrefixed, Reader, Whole
from tests.support.raw import prefixed

if TYPE_CHECKING:
    from collections.abc import Iterable


def split(reader: Reader, chunks: Iterable[bytes]) -> list[bytes]:
    records = [record for chunk in chunks for record in reader.feed(chunk)]
    return records + reader.finish()


def until_error(reader: Reader, chunks: Iterable[bytes]) -> tuple[list[bytes], str]:
    """The records before the error, and the error."""
    records: list[bytes] = []
    try:
        for chunk in chunks:
            records += reader.feed(chunk)
        records += reader.finish()
    except RecordError as error:
        return records, str(error)
    raise AssertionError(f"no error, but {records!r}")


def cuts(data: bytes) -> list[list[bytes]]:
    """The data in two pieces in every way, and byte by byte."""
    pairs = [[data[:i], data[i:]] for i in range(len(data) + 1)]
    return [*pairs, [data[i : i + 1] for i in range(len(data))]]


class TestDelimited:
    @given(
        st.text("ab", min_size=1, max_size=4),
        st.text("ab", max_size=40),
        st.lists(st.integers(0, 40)),
    )
    def test_the_cut_into_chunks_does_not_matter(
        self, delimiter: str, text: str, places: list[int]
    ) -> None:
        data = text.encode()
        bounds = [0, *sorted(places), len(data)]
        chunks = [data[a:b] for a, b in itertools.pairwise(bounds)]
        expected = data.split(delimiter.encode())
        if not expected[-1]:
            expected.pop()
        assert split(Delimited(delimiter.encode()), chunks) == expected

    def test_a_record_is_returned_by_the_chunk_that_completes_it(self) -> None:
        reader = Delimited(b"--", max_size=3)
        assert reader.feed(b"one-") == []  # a delimiter under way does not count as the record
        assert reader.feed(b"-two--thr") == [b"one", b"two"]
        assert reader.finish() == [b"thr"]

    @pytest.mark.parametrize("end", [b"", b"\nok\n"])
    def test_a_record_over_the_limit_is_named_after_those_before_it(self, end: bytes) -> None:
        for chunks in cuts(b"ok\n\n12345678\n123456789" + end):
            records, error = until_error(Delimited(max_size=8), chunks)
            assert records == [b"ok", b"", b"12345678"]
            assert error.startswith("record 4 at byte 13 is over 8 bytes, ")

    @pytest.mark.parametrize("delimiter", [b"\n", b"--"])
    def test_of_what_must_be_complete_a_last_record_without_delimiter_is_torn(
        self, delimiter: bytes
    ) -> None:
        data = b"one" + delimiter + delimiter
        for chunks in cuts(data):
            assert split(Delimited(delimiter, complete=True), chunks) == [b"one", b""]
        for chunks in cuts(data + b"tw-"):
            records, error = until_error(Delimited(delimiter, complete=True), chunks)
            assert records == [b"one", b""]
            assert error.startswith(f"record 3 at byte {len(data)}: ")


class TestLengthPrefixed:
    @pytest.mark.parametrize("records", [[], [b""], [b"one", b"", b"\0\0\0\1", b"x" * 300]])
    def test_the_cut_into_chunks_does_not_matter(self, records: list[bytes]) -> None:
        for chunks in cuts(prefixed(records)):
            assert split(LengthPrefixed(max_size=300), chunks) == records

    @pytest.mark.parametrize("tail", [b"\0\0", b"\0\0\0\5ab"])
    def test_a_truncated_tail_is_named_by_its_place(self, tail: bytes) -> None:
        for chunks in cuts(prefixed([b"one", b"2"]) + tail):
            records, error = until_error(LengthPrefixed(), chunks)
            assert records == [b"one", b"2"]
            assert error.startswith("record 3 at byte 12: ")

    def test_a_size_over_the_limit_is_refused_before_the_body_comes(self) -> None:
        reader = LengthPrefixed(max_size=1000)
        assert reader.feed(prefixed([b"one"]) + b"GET ") == [b"one"]
        with pytest.raises(RecordError, match=r"^record 2 at byte 7: .* --max-msg-size"):
            reader.feed(b"")


def test_a_whole_input_is_one_record_and_too_much_of_it_is_refused_at_once() -> None:
    assert split(Whole(), [b"one\n", b"", b"two\0"]) == [b"one\ntwo\0"]
    assert split(Whole(), []) == [b""]
    reader = Whole(max_size=4)
    assert reader.feed(b"1234") == []
    with pytest.raises(RecordError, match="over 4 bytes"):
        reader.feed(b"5")


class TestJsonLines:
    def test_bodies_are_taken_from_body_or_body_b64(self) -> None:
        data = b'{"topic":"t","body":"t\\u00fc\\u0000"}\r\n\n  \n{"body_b64":"/w=="}\n{"body":""}'
        for chunks in cuts(data):
            assert split(JsonLines(), chunks) == [b"t\xc3\xbc\0", b"\xff", b""]

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            (b"hello", "not JSON at column 1"),
            (b'{"body":"a"', "not JSON at column "),
            (b'{"body":"\xff"}', "not UTF-8 at byte 10"),
            (b'\xef\xbb\xbf{"body":"a"}', "not JSON at column "),
            (b"[1]", "expected an object"),
            (b"null", "expected an object"),
            (b'{"topic":"a"}', "expected either body or body_b64"),
            (b'{"body":"a","body_b64":""}', "expected either body or body_b64"),
            (b'{"body":{"a":1}}', "body "),
            (b'{"body":true}', "body "),
            (b'{"body_b64":7}', "body_b64 "),
            (b'{"body_b64":"/w="}', "body_b64 "),
            (b'{"body_b64":"/w ="}', "body_b64 "),
            (b'{"body_b64":"\xc3\xbc"}', "body_b64 "),
            (b'{"body":"\\ud800"}', "body "),
            (b"[" * 50_000, "not "),  # Python 3.14 reads on, and finds no end
            (b'{"timestamp":' + b"1" * 5000 + b',"body":""}', "not usable JSON: "),
            (b'{"body":"123456789"}', "the body is over 8 bytes, "),
        ],
        ids=lambda value: repr(value[:20]),
    )
    def test_a_wrong_line_is_named_with_what_is_wrong(self, line: bytes, complaint: str) -> None:
        data = b'{"body":"ok"}\n\n' + line + b'\n{"body":"late"}\n'
        records, error = until_error(JsonLines(max_size=8), [data])
        assert records == [b"ok"]
        assert error.startswith(f"line 3: {complaint}")

    def test_a_body_of_the_largest_size_fits_however_it_is_escaped(self) -> None:
        body = b"\0" * 100_000
        line = json.dumps({"body": body.decode()}).encode()
        assert split(JsonLines(max_size=100_000), [line]) == [body]

    @pytest.mark.parametrize(
        "value", ["", "null", '"5"', "1.5", "true", "-1", "9223372036854775808", "[5]"]
    )
    def test_a_timestamp_that_is_needed_and_none_is_named(self, value: str) -> None:
        assert timestamp_of({"timestamp": 2**63 - 1}) == 2**63 - 1
        line = f'{{"body":"a","timestamp":{value}}}\n' if value else '{"body":"a"}\n'
        assert split(JsonLines(), [line.encode()]) == [b"a"]
        records, error = until_error(JsonLines(observe=timestamp_of), [line.encode()])
        assert records == []
        assert error.startswith("line 1: expected a timestamp, ")

    def test_of_lines_that_must_be_complete_a_torn_one_is_named(self) -> None:
        for chunks in cuts(b'{"body":"a"}\n{"body":"b"}'):
            records, error = until_error(JsonLines(complete=True), chunks)
            assert records == [b"a"]
            assert error.startswith("line 2: ")

    def test_an_endless_line_is_refused_before_its_end(self) -> None:
        records, error = until_error(JsonLines(max_size=10), itertools.repeat(b" " * 1000))
        assert records == []
        assert error.startswith("line 1 is over")
