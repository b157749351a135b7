"""Long lists of nsqds, parsed a part at a time."""

import json
from typing import Any

import pytest

from nsqtools.net.http import longjson
from nsqtools.net.http.longjson import loads

NASTY = ("a},b", '"producers":[{', "\\", '"},{"', "\u00e9},", "]")
ENTRIES = [
    {"hostname": "host" if n < 1500 and n % 50 else NASTY[n % 6] * (n % 7), "n": n, "of": [{}, {}]}
    for n in range(2500)
]
"""Parts end between the first ones, and somewhere within the last ones."""
CHANNELS = ["a", "b"]
LONG = longjson.LONG // 16


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response is long, and a part ends, at a sixteenth of their sizes."""
    monkeypatch.setattr(longjson, "LONG", LONG)
    monkeypatch.setattr(longjson, "_PART", longjson._PART // 16)


def same(value: dict[str, Any]) -> object:
    return value


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " :\t")])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        {"channels": CHANNELS, "producers": ENTRIES},
        {"status_code": 200, "data": {"producers": ENTRIES, "channels": CHANNELS}},
        {"producers": [*ENTRIES, None, 1, "x"], "channels": [{}]},
        {"producers": ["x" * LONG]},
        {"producers": [], "x": "y" * LONG},
        [{"producers": []}, "y" * LONG],
    ],
)
def test_the_result_is_that_of_json(
    data: object, ascii_only: bool, separators: tuple[str, str]
) -> None:
    text = json.dumps(data, ensure_ascii=ascii_only, separators=separators).encode()
    assert len(text) > LONG
    assert loads(text, same) == data
    assert loads(bytearray(text), same) == data


@pytest.mark.parametrize("end", ["", "]", "}", "]}x", ",]}", "],}", "}]}"])
def test_what_is_no_json_is_an_error(end: str) -> None:
    text = json.dumps({"producers": ENTRIES}).removesuffix("]}") + end
    with pytest.raises(ValueError, match=r"."):
        loads(text.encode(), same)


def test_a_list_of_nsqds_at_another_place_is_an_error() -> None:
    text = json.dumps({"x": {"producers": ENTRIES}}).encode()
    with pytest.raises(ValueError, match="where none is expected"):
        loads(text, same)
