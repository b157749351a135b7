from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.engine.handler import Batch, Message
from nsqtools.errors import ConfigError
from nsqtools.names import Address
from nsqtools.sinks.formats import escape_controls, make_format, unescape
from nsqtools.sinks.records import JsonLines, LengthPrefixed

if TYPE_CHECKING:
    from collections.abc import Sequence

NOON = 1_700_000_000_123_456_789  # 2023-11-14T22:13:20.123456789Z
HOSTILE = b"a\x1b[2Jb"


class Unsettled:
    def finish(self, messages: Sequence[Message]) -> None:
        raise AssertionError("a format settles nothing")

    def requeue(self, messages: Sequence[Message], *, delay: float | None, backoff: bool) -> None:
        raise AssertionError("a format settles nothing")

    def touch(self, messages: Sequence[Message]) -> None:
        raise AssertionError("a format settles nothing")

    def forget(self, messages: Sequence[Message]) -> None:
        raise AssertionError("a format settles nothing")


def batch(
    *bodies: bytes, topic: str = "events", channel: str = "tail#ephemeral", host: str = "db1"
) -> Batch:
    messages = [
        Message(id=b"%016x" % number, body=body, timestamp=NOON + number, attempts=number)
        for number, body in enumerate(bodies, 1)
    ]
    return Batch(messages, Unsettled(), topic=topic, channel=channel, source=Address(host, 4150))


def render(*bodies: bytes, **options: Any) -> bytes:
    return make_format(**options).render(batch(*bodies))


class TestLines:
    @pytest.mark.parametrize("delimiter", [b"\n", b"\0", b"", b"--\xff--"])
    def test_each_body_is_followed_by_the_delimiter(self, delimiter: bytes) -> None:
        assert render(b"one", b"", b"three", delimiter=delimiter) == (
            b"one" + delimiter + delimiter + b"three" + delimiter
        )

    def test_bodies_are_written_byte_for_byte(self) -> None:
        body = bytes(range(256))
        assert render(body) == body + b"\n"

    def test_the_topic_stands_before_the_body_as_nsq_tail_prints_it(self) -> None:
        assert render(b"one", b"two", print_topic=True) == b"events | one\nevents | two\n"

    def test_a_time_is_rfc_3339_in_utc_with_microseconds(self) -> None:
        assert render(b"one", timestamps=True) == b"2023-11-14T22:13:20.123456Z one\n"

    def test_the_time_stands_before_the_topic(self) -> None:
        line = render(b"one", timestamps=True, print_topic=True, delimiter=b"\0")
        assert line == b"2023-11-14T22:13:20.123456Z events | one\0"

    @pytest.mark.parametrize(
        ("ns", "text"),
        [
            (0, b"1970-01-01T00:00:00.000000Z"),
            (999, b"1970-01-01T00:00:00.000000Z"),
            (-1, b"1969-12-31T23:59:59.999999Z"),
            (2**63 - 1, b"2262-04-11T23:47:16.854775Z"),
        ],
    )
    def test_any_time_that_nsqd_can_send_is_printable(self, ns: int, text: bytes) -> None:
        one = batch(b"x")
        one[0].timestamp = ns
        assert make_format(timestamps=True).render(one) == text + b" x\n"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"print_topic": True, "timestamps": True},
        {"json": True},
        {"length_prefix": True},
        {"template": "%s\n"},
        {"template": "x"},
    ],
)
def test_an_empty_batch_renders_to_nothing(options: dict[str, Any]) -> None:
    assert render(**options) == b""


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
        assert render(b"body", template=template) == expected

    def test_no_delimiter_is_added(self) -> None:
        assert render(b"one", b"two", template="%a=%s;") == b"1=one;2=two;"

    def test_text_alone_is_written_once_for_each_message(self) -> None:
        assert render(b"one", b"two", template=r"100%% %t\n") == b"100% events\n" * 2

    def test_percent_signs_in_data_are_data(self) -> None:
        assert make_format(template="%h %s").render(batch(b"%s%d%", host="%s")) == b"%s:4150 %s%d%"

    @pytest.mark.parametrize(
        ("template", "complaint"),
        [
            ("", "--format: the template is empty"),
            ("ab%q", "--format: unknown verb %q at character 3"),
            ("%s %", "--format: unknown verb % at character 4"),
            ("%d", "--format: unknown verb %d at character 1"),
            ("%d{%H", "--format: unknown verb %d at character 1"),
            (r"a\q", r"--format: unknown escape \q at character 2"),
            ("a\\", "--format: unknown escape \\ at character 2"),
            (r"\x4", r"--format: unknown escape \x at character 1"),
            ("%s%d{%H %s}", "--format: %d{%H %s} at character 3: %s is not a part of a date"),
        ],
    )
    def test_a_fault_is_refused_with_its_position(self, template: str, complaint: str) -> None:
        with pytest.raises(ConfigError) as caught:
            make_format(template=template)
        assert str(caught.value).startswith(complaint)

    def test_a_date_that_strftime_cannot_write_is_refused_before_any_message(self) -> None:
        try:
            form = make_format(template="%d{\udcff}")
        except ConfigError as error:
            assert str(error).startswith("--format: %d{\udcff} at character 1: ")  # noqa: PT017
        else:  # Python 3.14 can
            assert form.render(batch(b"x")) == b"\xff"


class TestJSON:
    def test_an_envelope_is_one_object_a_line(self) -> None:
        lines = render(b"one", b"t\xc3\xbc\n", json=True).split(b"\n")
        assert lines.pop() == b""
        assert [json.loads(line) for line in lines] == [
            {
                "topic": "events",
                "channel": "tail#ephemeral",
                "id": f"{number:016x}",
                "timestamp": NOON + number,
                "attempts": number,
                "nsqd": "db1:4150",
                "body": body,
            }
            for number, body in [(1, "one"), (2, "t\u00fc\n")]
        ]

    def test_characters_beyond_ascii_stay_readable(self) -> None:
        assert "t\u00fc \u2028".encode() in render("t\u00fc \u2028".encode(), json=True)

    @pytest.mark.parametrize("body", [b"\xff", b"\xed\xa0\x80", b"ab\xc3"])
    def test_a_body_that_is_not_utf_8_is_base64(self, body: bytes) -> None:
        envelope = json.loads(render(body, json=True))
        assert "body" not in envelope
        assert JsonLines().feed(render(body, json=True)) == [body]

    def test_an_id_that_breaks_the_rules_does_not_break_the_json(self) -> None:
        one = batch(b"x")
        one[0].id = b'"\xff\n"'
        (line,) = make_format(json=True).render(one).splitlines()
        assert json.loads(line)["id"] == '"\xff\n"'

    @given(st.lists(st.binary() | st.text().map(str.encode)), st.booleans())
    def test_bodies_come_back_byte_for_byte(self, bodies: list[bytes], escape: bool) -> None:
        data = render(*bodies, json=True, escape=escape)
        assert data.count(b"\n") == len(bodies)
        splitter = JsonLines()
        assert splitter.feed(data) + splitter.finish() == bodies


class TestLengthPrefix:
    def test_a_record_is_its_size_in_big_endian_and_its_body(self) -> None:
        assert render(b"one", b"", length_prefix=True) == b"\0\0\0\3one\0\0\0\0"

    @given(st.lists(st.binary()))
    def test_bodies_come_back_byte_for_byte(self, bodies: list[bytes]) -> None:
        splitter = LengthPrefixed()
        data = render(*bodies, length_prefix=True)
        assert splitter.feed(data) + splitter.finish() == bodies


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
        "options",
        [
            {},
            {"delimiter": b"\0"},
            {"print_topic": True, "timestamps": True},
            {"template": "%s %h"},
            {"json": True},
            {"length_prefix": True},
        ],
    )
    @pytest.mark.parametrize("body", [HOSTILE, "\x9b2J \u202e \x7f".encode(), b"\xff\x1b"])
    def test_no_layout_lets_a_body_drive_the_terminal(
        self, options: dict[str, Any], body: bytes
    ) -> None:
        data = make_format(escape=True, **options).render(batch(body, host="\x1bhost"))
        allowed = options.get("delimiter", b"")
        assert escape_controls(data.replace(allowed, b"")) == data.replace(allowed, b"")

    @pytest.mark.parametrize("options", [{"length_prefix": True}, {"template": "%R%s"}])
    def test_the_size_of_a_body_cannot_become_an_escape(self, options: dict[str, Any]) -> None:
        body = b"[2J".ljust(0x1B)
        assert (
            make_format(escape=True, **options).render(batch(body)) == rb"\x00\x00\x00\x1b" + body
        )

    def test_the_delimiter_and_the_text_of_a_template_are_the_users_own(self) -> None:
        assert render(HOSTILE, delimiter=b"\x1b[0m\n", escape=True) == rb"a\x1b[2Jb" + b"\x1b[0m\n"
        assert render(HOSTILE, template=r"\x1b[1m%s", escape=True) == b"\x1b[1m" + rb"a\x1b[2Jb"

    def test_the_size_is_that_of_the_body_as_it_was_sent(self) -> None:
        assert render(HOSTILE, template="%S", escape=True) == b"%d" % len(HOSTILE)

    def test_without_it_bytes_pass_raw(self) -> None:
        assert render(HOSTILE) == HOSTILE + b"\n"


class TestUnescape:
    @pytest.mark.parametrize(
        ("text", "data"),
        [
            ("", b""),
            (r"\n", b"\n"),
            (r"\r\n", b"\r\n"),
            (r"\0\t\\", b"\0\t\\"),
            (r"\x00\xfF\x5cn", b"\0\xff\\n"),
            ("%s\u00a7", b"%s\xc2\xa7"),
            ("a\nb", b"a\nb"),
            ("\udc80", b"\x80"),
        ],
    )
    def test_escapes_become_bytes_and_the_rest_is_utf_8(self, text: str, data: bytes) -> None:
        assert unescape(text) == data

    @pytest.mark.parametrize("text", [r"ab\q", "ab\\", r"ab\x1", r"ab\xgg", "ab\\\n"])
    def test_another_escape_is_refused_with_its_position(self, text: str) -> None:
        with pytest.raises(ConfigError, match="at character 3: expected"):
            unescape(text)
