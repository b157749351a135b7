"""Bodies as people read them."""

import tracemalloc

from nsqtools.records.readable import readable


def test_a_body_is_json_text_or_hex() -> None:
    assert readable(b'{"a":[1]}', 100) == ("json", '{\n  "a": [\n    1\n  ]\n}')
    assert readable("Grüße\n".encode(), 100) == ("text", "Grüße\n")
    kind, text = readable(b"\xff\x00A" * 6, 100)
    assert kind == "bytes"
    assert text.splitlines()[1].split() == ["00000010", "00", "41", ".A"]
    for controls in (b"\x1b[2J", "\u202e".encode()):
        assert readable(controls, 100).kind == "bytes"


def test_a_long_body_is_cut_and_says_so() -> None:
    assert readable(b"x" * 1000, 10).text == "xxxxxxxxxx\n... 1,000 bytes in all"
    assert len(readable(b"\xff" * 100_000, 100).text) < 1000
    assert readable(b"[" * 100_000, 10).kind == "text"


def test_deep_json_is_not_indented_beyond_what_is_shown() -> None:
    depth = 900
    body = b"[" * depth + b"1," * 5_000 + b"1" + b"]" * depth  # 9 MB if it were all indented
    tracemalloc.start()
    kind, text = readable(body, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (kind, text[:13]) == ("json", "[\n  [\n    [\n ")
    assert len(text) < 1100
    assert peak < 1 << 20
