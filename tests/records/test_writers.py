import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.engine.handler import Batch, Message
from nsqtools.errors import ConfigError
from nsqtools.names import Address
from nsqtools.records.forms import make_writer
from nsqtools.records.layout import Layout
from nsqtools.records.readers import JsonLines
from nsqtools.records.template import Template
from nsqtools.records.writers import Writer, escape_controls
from tests.support.archiving import Settled

NOON = 1_700_000_000_123_456_789  # 2023-11-14T22:13:20.123456789Z
RAW, JSON, PREFIXED = Layout(), Layout("json"), Layout("length-prefixed")
BOLD = Layout("raw", b"\x1b[0m\n")
HOSTILE = b"a\x1b[2Jb"


def batch(*bodies: bytes, host: str = "db1") -> Batch:
    messages = [
        Message(id=b"%016x" % number, body=body, timestamp=NOON + number, attempts=number)
        for number, body in enumerate(bodies, 1)
    ]
    place: dict[str, Any] = {"topic": "events", "channel": "tail#ephemeral"}
    return Batch(messages, Settled(), source=Address(host, 4150), **place)


def rendered(writer: Writer, *bodies: bytes) -> bytes:
    messages = batch(*bodies)
    return b"".join(writer.render(messages, messages))


def render(*bodies: bytes, layout: Layout = RAW, **options: Any) -> bytes:
    return rendered(make_writer(layout, **options), *bodies)


class TestLines:
    @pytest.mark.parametrize(
        ("options", "before"),
        [
            ({}, b""),
            ({"layout": Layout("raw", b"\0")}, b""),
            ({"layout": Layout("raw", b"")}, b""),
            ({"layout": Layout("raw", b"--\xff--")}, b""),
            ({"print_topic": True}, b"events | "),
            ({"timestamps": True}, b"2023-11-14T22:13:20.123456Z "),
            ({"timestamps": True, "print_topic": True}, b"2023-11-14T22:13:20.123456Z events | "),
        ],
    )
    def test_bodies_are_written_byte_for_byte_between_what_was_asked_for(
        self, options: dict[str, Any], before: bytes
    ) -> None:
        bodies = (b"one", b"", bytes(range(256)))
        delimiter = options.get("layout", RAW).delimiter
        assert render(*bodies, **options) == b"".join(before + b + delimiter for b in bodies)

    @pytest.mark.parametrize("number", [1, 500, 501])
    @pytest.mark.parametrize("layout", [RAW, PREFIXED])
    def test_large_bodies_are_not_copied_and_are_not_too_many_for_one_call(
        self, layout: Layout, number: int
    ) -> None:
        messages = batch(*[b"x" * 10_000] * number)
        pieces = make_writer(layout).render(messages, messages)
        assert b"".join(pieces) == render(b"x" * 10_000, layout=layout) * number
        assert len(pieces) == (2 * number if number <= 500 else 1)
        assert number > 500 or messages[0].body in pieces
        assert len(pieces) <= os.sysconf("SC_IOV_MAX")


class TestTemplate:
    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            ("%s", b"body"),
            ("%S", b"4"),
            ("%R%s", b"\0\0\0\4body"),
            ("%t/%c", b"events/tail#ephemeral"),
            ("%i", b"0000000000000001"),
            ("%a", b"1"),
            ("%T", b"1700000000123456790"),
            ("%d{%Y-%m-%d %H:%M:%S.%f}", b"2023-11-14 22:13:20.123456"),
            ("%d{%%s %Z}", b"%s UTC"),
            ("%h", b"db1:4150"),
            ("100%% %s%%", b"100% body%"),
            (r"\n\t\r\0\\\x41\xff", b"\n\t\r\0\\A\xff"),
            (r"\x25s\x25 %a", b"%s% 1"),
            ("na\u00efve \udcff", b"na\xc3\xafve \xff"),
        ],
    )
    def test_verbs_and_escapes_are_replaced(self, template: str, expected: bytes) -> None:
        assert rendered(Template(template), b"body") == expected

    def test_messages_follow_each_other_and_percent_signs_in_data_are_data(self) -> None:
        assert rendered(Template("%a=%s;"), b"one", b"two") == b"1=one;2=two;"
        assert rendered(Template(r"100%% %t\n"), b"one", b"two") == b"100% events\n" * 2
        assert Template("%h %s").render(batch(host="%s"), batch(b"%s%d%")) == [b"%s:4150 %s%d%"]

    @pytest.mark.parametrize(
        ("template", "fault", "place"),
        [
            ("", "empty", 0),
            ("ab%q", "%q", 3),
            ("%s %", "%", 4),
            ("%d", "%d", 1),
            ("%d{%H", "%d", 1),
            (r"a\q", r"\q", 2),
            ("a\\", "\\", 2),
            (r"\x4", r"\x", 1),
            ("%s%d{%H %s}", "%d{%H %s}", 3),
        ],
    )
    def test_a_fault_is_refused_with_its_position(
        self, template: str, fault: str, place: int
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            Template(template)
        assert str(caught.value).startswith("--format: ")
        assert (f"{fault} at character {place}" if place else fault) in str(caught.value)


class TestJSON:
    def test_an_envelope_is_one_object_a_line(self) -> None:
        bodies = [b"one", b"t\xc3\xbc\n", b"\xff", b"\xed\xa0\x80", b"ab\xc3"]
        shown = [{"body": "one"}, {"body": "t\u00fc\n"}]
        shown += [{"body_b64": text} for text in ("/w==", "7aCA", "YWLD")]
        lines = render(*bodies, layout=JSON).splitlines()
        assert [json.loads(line) for line in lines] == [
            {
                "topic": "events",
                "channel": "tail#ephemeral",
                "id": f"{number:016x}",
                "timestamp": NOON + number,
                "attempts": number,
                "nsqd": "db1:4150",
                **body,
            }
            for number, body in enumerate(shown, 1)
        ]

    @given(st.lists(st.binary() | st.text().map(str.encode)), st.booleans())
    def test_bodies_come_back_byte_for_byte(self, bodies: list[bytes], escape: bool) -> None:
        data = render(*bodies, layout=JSON, escape=escape)
        assert data.count(b"\n") == len(bodies)
        reader = JsonLines()
        assert reader.feed(data) + reader.finish() == bodies


class TestEscape:
    @pytest.mark.parametrize(
        ("data", "shown"),
        [
            (b"plain text\t1\n", b"plain text\t1\n"),
            ("na\u00efve \u65e5\u672c \U0001f600".encode(), None),
            (b"\x1b]0;owned\x07", rb"\x1b]0;owned\x07"),
            (b"a\rb\x00\x7f", rb"a\x0db\x00\x7f"),
            (b"\x9b2J", rb"\x9b2J"),
            ("\x9b2J".encode(), rb"\xc2\x9b2J"),
            (b"\xc3\x28 \xed\xa0\x80 \xf5", rb"\xc3( \xed\xa0\x80 \xf5"),
            ("\u202egpj.exe\u2066".encode(), rb"\xe2\x80\xaegpj.exe\xe2\x81\xa6"),
            (b"tail cut \xe2\x80", rb"tail cut \xe2\x80"),
        ],
    )
    def test_only_printable_text_newline_and_tab_stay(
        self, data: bytes, shown: bytes | None
    ) -> None:
        assert escape_controls(data) == (data if shown is None else shown)

    @given(st.binary() | st.text().map(str.encode))
    def test_what_it_returns_is_harmless_whatever_it_was_given(self, data: bytes) -> None:
        text = escape_controls(data).decode()
        assert all(c in "\n\t" or not ("\0" <= c < " " or "\x7f" <= c <= "\x9f") for c in text)
        assert not set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

    @pytest.mark.parametrize(
        ("writer", "allowed"),
        [
            *((make_writer(layout, escape=True), b"") for layout in (RAW, JSON, PREFIXED)),
            (make_writer(Layout("raw", b"\0"), escape=True), b"\0"),
            (make_writer(RAW, print_topic=True, timestamps=True, escape=True), b""),
            (Template("%s %h", escape=True), b""),
        ],
    )
    @pytest.mark.parametrize("body", [HOSTILE, "\x9b2J \u202e \x7f".encode(), b"\xff\x1b"])
    def test_no_layout_lets_a_body_drive_the_terminal(
        self, writer: Writer, allowed: bytes, body: bytes
    ) -> None:
        (data,) = writer.render(batch(host="\x1bhost"), batch(body))
        data = data.replace(allowed, b"")
        assert escape_controls(data) == data

    @pytest.mark.parametrize(
        ("body", "writer", "shown"),
        [
            (HOSTILE, make_writer(BOLD, escape=True), rb"a\x1b[2Jb" + BOLD.delimiter),
            (HOSTILE, Template(r"\x1b[1m%s", escape=True), b"\x1b[1m" + rb"a\x1b[2Jb"),
            (HOSTILE, Template("%S", escape=True), b"6"),
            (HOSTILE, make_writer(RAW), HOSTILE + b"\n"),
            (b"x" * 27, make_writer(PREFIXED, escape=True), rb"\x00\x00\x00\x1b" + b"x" * 27),
            (b"x" * 27, Template("%R%s", escape=True), rb"\x00\x00\x00\x1b" + b"x" * 27),
        ],
    )
    def test_a_size_is_escaped_and_what_the_user_gave_is_not(
        self, body: bytes, writer: Writer, shown: bytes
    ) -> None:
        assert rendered(writer, body) == shown
