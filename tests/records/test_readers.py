"""Records of a stream: the same however it is cut into chunks, up to the first fault."""

import itertools
import json
from collections.abc import Callable, Iterable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import RecordError
from nsqtools.records.envelope import timestamp_of
from nsqtools.records.readers import Delimited, JsonLines, LengthPrefixed, Reader, Whole
from tests.support.raw import prefixed
from tests.support.sessions import cut


def split(reader: Reader, chunks: Iterable[bytes]) -> tuple[list[bytes], str]:
    """The records before the first error, and the error."""
    records: list[bytes] = []
    try:
        for chunk in chunks:
            records += reader.feed(chunk)
        return records + reader.finish(), ""
    except RecordError as error:
        return records, str(error)


# name: how to read, the data, its records, and how the error behind them begins
EIGHT = partial(Delimited, max_size=8)
PREFIXED = partial(LengthPrefixed, max_size=300)
WHOLE, DASHES = (partial(Delimited, delimiter, complete=True) for delimiter in (b"\n", b"--"))
JSON = b'{"topic":"t","body":"t\\u00fc\\u0000"}\r\n\n  \n{"body_b64":"/w=="}\n{"body":""}'
Case = tuple["Callable[[], Reader]", bytes, list[bytes], str]
CASES: dict[str, Case] = {
    "a record over the limit": (
        *(EIGHT, b"ok\n\n12345678\n123456789\nok\n", [b"ok", b"", b"12345678"]),
        "record 4 at byte 13 is over 8 bytes, ",
    ),
    "a last record over the limit": (
        *(EIGHT, b"ok\n123456789", [b"ok"]),
        "record 2 at byte 3 is over 8 bytes, ",
    ),
    "lines": (WHOLE, b"one\n\n", [b"one", b""], ""),
    "a torn line": (WHOLE, b"one\n\ntwo", [b"one", b""], "record 3 at byte 5: "),
    "dashes": (DASHES, b"one----", [b"one", b""], ""),
    "a torn delimiter": (DASHES, b"one----tw-", [b"one", b""], "record 3 at byte 7: "),
    "no size": (PREFIXED, b"", [], ""),
    "sizes": (
        *(PREFIXED, prefixed([b"one", b"", b"\0\0\0\1", b"x" * 300, b""])),
        *([b"one", b"", b"\0\0\0\1", b"x" * 300, b""], ""),
    ),
    "a torn size": (
        *(PREFIXED, prefixed([b"one"]) + b"\0\0", [b"one"]),
        "record 2 at byte 7: it is incomplete: expected 4 bytes including the size, found 2",
    ),
    "a torn body": (
        *(PREFIXED, prefixed([b"one"]) + b"\0\0\0\5ab", [b"one"]),
        "record 2 at byte 7: it is incomplete: expected 9 bytes including the size, found 6",
    ),
    "no size but text": (PREFIXED, prefixed([b"one"]) + b"GET ", [b"one"], "record 2 at byte 7: "),
    "a whole": (Whole, b"one\n\0", [b"one\n\0"], ""),
    "nothing": (Whole, b"", [b""], ""),
    "too much of a whole": (partial(Whole, max_size=4), b"12345", [], "the input is over 4 bytes"),
    "envelopes": (JsonLines, JSON, [b"t\xc3\xbc\0", b"\xff", b""], ""),
    "a torn envelope": (
        *(partial(JsonLines, complete=True), b'{"body":"a"}\n{"body":"b"}', [b"a"]),
        "line 2: ",
    ),
}


@pytest.mark.parametrize(("make", "data", "records", "error"), CASES.values(), ids=CASES)
def test_records_end_where_they_end_and_the_first_fault_is_named(
    make: Callable[[], Reader], data: bytes, records: list[bytes], error: str
) -> None:
    for offsets in [*([at] for at in range(len(data) + 1)), range(len(data))]:
        found, complaint = split(make(), cut(data, offsets))
        assert found == records
        assert complaint.startswith(error)
        assert bool(complaint) == bool(error)


@given(
    st.text("ab", min_size=1, max_size=4), st.text("ab", max_size=40), st.lists(st.integers(0, 40))
)
def test_any_delimiter_splits_as_it_would_all_at_once(
    delimiter: str, text: str, offsets: list[int]
) -> None:
    data = text.encode()
    expected = data.split(delimiter.encode())
    if not expected[-1]:
        expected.pop()
    chunks = cut(data, [min(each, len(data)) for each in offsets])
    assert split(Delimited(delimiter.encode()), chunks) == (expected, "")


def test_a_record_is_returned_by_the_chunk_that_completes_it() -> None:
    reader = Delimited(b"--", max_size=3)
    assert reader.feed(b"one-") == []  # a delimiter under way does not count as the record
    assert reader.feed(b"-two--thr") == [b"one", b"two"]
    assert reader.finish() == [b"thr"]


def test_what_is_too_large_is_refused_before_all_of_it_comes() -> None:
    sized = LengthPrefixed(max_size=1000)
    assert sized.feed(prefixed([b"one"]) + b"GET ") == [b"one"]
    whole = Whole(max_size=4)
    assert whole.feed(b"1234") == []
    for reader, more in ((sized, b""), (whole, b"5")):
        with pytest.raises(RecordError, match="--max-msg-size"):
            reader.feed(more)
    assert split(JsonLines(max_size=10), itertools.repeat(b" " * 1000))[1].startswith("line 1 is")


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
def test_a_line_that_is_no_envelope_is_named_with_what_is_wrong(
    line: bytes, complaint: str
) -> None:
    data = b'{"body":"ok"}\n\n' + line + b'\n{"body":"late"}\n'
    records, error = split(JsonLines(max_size=8), [data])
    assert records == [b"ok"]
    assert error.startswith(f"line 3: {complaint}")


def test_a_body_of_the_largest_size_fits_however_it_is_escaped() -> None:
    body = b"\0" * 100_000
    line = json.dumps({"body": body.decode()}).encode()
    assert split(JsonLines(max_size=100_000), [line]) == ([body], "")


@pytest.mark.parametrize(
    "value", ["", "null", '"5"', "1.5", "true", "-1", "9223372036854775808", "[5]"]
)
def test_a_timestamp_that_is_needed_and_none_is_named(value: str) -> None:
    assert timestamp_of({"timestamp": 2**63 - 1}) == 2**63 - 1
    line = f'{{"body":"a","timestamp":{value}}}\n' if value else '{"body":"a"}\n'
    assert split(JsonLines(), [line.encode()]) == ([b"a"], "")
    records, error = split(JsonLines(observe=timestamp_of), [line.encode()])
    assert records == []
    assert error.startswith("line 1: expected a timestamp, ")
