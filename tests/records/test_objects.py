"""JSON objects of which nothing is written anew."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import RecordError
from nsqtools.records.bodies.objects import is_equal, join, members_of, text_of

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)
FORMS: list[dict[str, Any]] = [
    {"indent": 2},
    {"separators": (",", ":")},
    {"ensure_ascii": False, "separators": (" ,\t", "\r\n: ")},
]
NOT_JSON = [
    *(b"", b" ", b"nul", b"1 2", b"{} {}", b'{"a":1,}', b"{,}", b'{"a" 1}', b'{"a":}', b'{"a":1'),
    *(b'{"a":1]', b'{"a":01}', b'{"a":+1}', b'{"a":1.}', b'{"a":NaN}', b'{"a":-Infinity}'),
    *(b'{"a":"\n"}', b'{"a\n":1}', b'{"a\\x":1}', b"{'a':1}", b'{"a":"\xff"}', b"\xef\xbb\xbf{}"),
    *('{"a":1}'.encode("utf-16"), b"[" * 100_000, b'{"a":' * 100_000),
]


@given(st.dictionaries(st.text(), VALUES), st.data())
def test_they_are_what_a_parser_finds_and_what_is_written(
    value: dict[str, Any], data: st.DataObject
) -> None:
    try:
        body = json.dumps(value, **data.draw(st.sampled_from(FORMS))).encode()
    except UnicodeEncodeError:  # half a surrogate pair has no UTF-8
        return
    found = members_of(body)
    assert [each.key for each in found] == list(value)
    assert [json.loads(each.raw) for each in found] == list(value.values())
    assert all(each.raw_key.encode() in body and each.raw.encode() in body for each in found)
    assert json.loads(join(found)) == value
    assert text_of(body).encode() == body


@given(st.binary() | st.text(alphabet='{}[]",:\\tru1e-. ').map(str.encode))
def test_what_is_taken_for_json_is_json(body: bytes) -> None:
    for read in (text_of, members_of):
        try:
            read(body)
        except RecordError:
            continue
        json.loads(body.decode())


@pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: repr(body[:20]))
def test_what_is_not_json_is_told_so(body: bytes) -> None:
    for read in (text_of, members_of):
        with pytest.raises(RecordError, match=r"^not JSON$"):
            read(body)


@pytest.mark.parametrize("body", [b"[1]", b'"text"', b" null ", b"1" * 10_000])
def test_they_are_of_objects_alone(body: bytes) -> None:
    assert text_of(body) == body.decode()
    with pytest.raises(RecordError, match="not a JSON object"):
        members_of(body)


def test_nothing_of_them_is_written_anew_and_repeated_keys_are_all_there() -> None:
    body = '{ "n" : 12345678901234567890.10 , "\\u0061":"<\\u003c\\/é" ,"n": {"z": 1,  "a":[ ]}}'
    found = members_of(body.encode())
    assert [tuple(each) for each in found] == [
        ("n", '"n"', "12345678901234567890.10"),
        ("a", '"\\u0061"', '"<\\u003c\\/é"'),
        ("n", '"n"', '{"z": 1,  "a":[ ]}'),
    ]
    assert join(found[1:]).decode() == '{"\\u0061":"<\\u003c\\/é","n":{"z": 1,  "a":[ ]}}'


@pytest.mark.parametrize(
    ("raw", "equal", "others"),
    [
        ('"text"', ["text"], ['"text"']),
        ('"5"', ["5"], ["5.0"]),
        ('"\\u00e9"', ["é"], []),
        ('"true"', ["true"], []),
        ("5", ["5", "5.0"], ["five", "0x5", " 5"]),
        ("100", ["1e2"], []),
        ("-0", ["0"], []),
        ("12345678901234567890", ["12345678901234567890"], ["12345678901234567891"]),
        ("0.1", ["0.10"], ["0.10000000000000000001"]),
        ("1e1000000000", ["10e999999999"], []),
        ("1e99999999999999999999", [], ["1"]),
        ("1", [], ["true"]),
        ("true", ["true"], ["1", "True"]),
        ("false", ["false"], []),
        ("null", ["null"], []),
        ("[]", [], ["[]"]),
        ("{}", [], ["{}"]),
    ],
)
def test_a_value_equals_what_means_the_same(raw: str, equal: list[str], others: list[str]) -> None:
    assert [text for text in equal + others if is_equal(raw, text)] == equal
