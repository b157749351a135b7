"""Bodies as people read them."""

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
