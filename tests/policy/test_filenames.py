"""Names of archive files, by the clock and by the time of a message."""

import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import SECOND, FileNames, NamePattern
from nsqtools.proto.messages import Message

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [
    UTC,
    BERLIN,
    ZoneInfo("Australia/Lord_Howe"),  # half an hour of summer time
    ZoneInfo("Asia/Kathmandu"),  # 5:45
    ZoneInfo("Africa/Monrovia"),  # 0:44:30 until 1972
    ZoneInfo("Pacific/Apia"),  # left out a day
    timezone(timedelta(minutes=7, seconds=13)),
]
FORMATS = ["%Y-%m-%d_%H", "dt=%Y-%m-%d/hour=%H/", "%j", "%H%M", "%T", "%R", "%H%z%Z", "%I%p", "%M"]
NS = st.integers(0, 4_000_000_000).map(lambda second: second * SECOND) | st.integers(0, 2**63)


def names(
    filename_format: str = "<TOPIC>.<HOST><REV>.<DATETIME>.log",
    datetime_format: str = "%Y-%m-%d_%H",
    *,
    topic: str = "events",
    zone: tzinfo | None = UTC,
    **options: str,
) -> FileNames:
    pattern = NamePattern(
        filename_format=filename_format, datetime_format=datetime_format, **options
    )
    return FileNames(pattern, topic=topic, hostname="web1.example.com", pid=42, zone=zone)


def ns(text: str) -> int:
    """Of an ISO time with its offset from UTC."""
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


NOON = ns("2026-11-20T12:34:56+00:00")


def path(of: FileNames, revision: int = 0, at: int = NOON) -> str:
    return of.path(of.at(at), revision)


@pytest.mark.parametrize(
    ("filename_format", "options", "revision", "expected"),
    [
        ("<TOPIC>.<HOST><REV>.<DATETIME>.log", {}, 0, "events.web1.2026-11-20_12.log"),
        ("<TOPIC>.<HOST><REV>.log", {}, 1, "events.web1-000001.log"),
        ("<TOPIC><REV>", {"repeated_by": "--gzip"}, 0, "events-000000"),
        ("<TOPIC><REV>", {"repeated_by": "--gzip"}, 1_234_567, "events-1234567"),
        ("<DATETIME>/<TOPIC>-<PID>.log", {}, 0, "2026-11-20_12/events-42.log"),
        ("100%_a<TOPIC>%%Y%é", {}, 0, "100%_aevents%%Y%é"),
        ("a < b", {}, 0, "a < b"),
        ("<TOPIC>/x", {"topic": "..."}, 0, ".../x"),
    ],
)
def test_tokens_are_replaced_and_the_rest_is_kept(
    filename_format: str, options: dict[str, Any], revision: int, expected: str
) -> None:
    assert path(names(filename_format, **options), revision) == expected


def test_a_format_without_rev_is_refused_where_several_files_may_have_one_name() -> None:
    with pytest.raises(ConfigError, match=r"--filename-format '<TOPIC>': .*--rotate-size"):
        NamePattern(filename_format="<TOPIC>", repeated_by="--rotate-size")
    with pytest.raises(ConfigError, match=r"events\.log"):
        path(names("<TOPIC>.log"), 1)


def test_every_directive_is_that_of_strftime() -> None:
    moment = datetime.fromtimestamp(NOON // SECOND, BERLIN)
    for letter in "aAbBcCdDeFgGhHIjklmMpPrRSTuUVwWxXyYzZ":
        of = names("<DATETIME>", f"%{letter}", zone=BERLIN)
        assert of.at(NOON) == moment.strftime(f"%{letter}")


@pytest.mark.parametrize(
    ("datetime_format", "culprit"),
    [("%Y-%Q", "%Q"), ("%", "%"), ("%5Y", "%5"), ("%-s", "%-s"), ("%H.%f", "%f"), ("<REV>",) * 2],
)
def test_what_is_no_directive_is_refused(datetime_format: str, culprit: str) -> None:
    with pytest.raises(ConfigError, match=f"^--datetime-format '.*': {culprit}"):
        names("all", datetime_format)


@pytest.mark.parametrize(
    ("option", "value", "fix"),
    [
        ("filename_format", "<TOPIK>.log", "<TOPIC>"),
        ("filename_format", "<FOO>", "<TOPIC> <HOST> <PID> <DATETIME> <REV>"),
        ("filename_format", "%Y/<TOPIC>", "<DATETIME>"),
        ("host_identifier", "<HOST_NAME>", "<HOSTNAME>"),
        ("host_identifier", "<REV>", "<SHORT_HOST> <HOSTNAME>"),
    ],
)
def test_what_is_no_token_is_refused_with_the_right_one(option: str, value: str, fix: str) -> None:
    place = f"--{option.replace('_', '-')} '{value}': "
    with pytest.raises(ConfigError, match=f"^{place}.*{fix}"):
        NamePattern(**{option: value})


@pytest.mark.parametrize(
    ("filename_format", "datetime_format", "culprit"),
    [
        ("../<TOPIC>", "%Y", "is outside"),
        ("a/<DATETIME>/b", "..", "is outside"),
        (".<REV>./b", "%Y", "is outside"),
        ("/tmp/<TOPIC>", "%Y", "is absolute"),
        ("<REV>/<TOPIC>", "%Y", "is absolute"),
        ("<DATETIME>x", "/%Y/", "is absolute"),
        ("<TOPIC>\0", "%Y", "NUL"),
        ("<DATETIME>", "%Y/", "is a directory"),
        ("<REV>", "%Y", "is a directory"),
        ("./<TOPIC>", "%Y", "empty part"),
        ("a//<TOPIC>", "%Y", "empty part"),
        ("a/<REV>/<TOPIC>", "%Y", "empty part"),
    ],
)
def test_a_name_outside_the_directory_is_refused_before_any_topic_is_known(
    filename_format: str, datetime_format: str, culprit: str
) -> None:
    with pytest.raises(ConfigError, match=f"^--filename-format: .*{culprit}"):
        NamePattern(filename_format=filename_format, datetime_format=datetime_format)


def test_a_topic_or_a_zone_that_would_leave_the_directory_is_refused_alone() -> None:
    for topic in (".", "..", "a/b"):
        with pytest.raises(ConfigError):
            names("<TOPIC>/x", topic=topic)
    with pytest.raises(ConfigError, match="is outside"):
        names("<DATETIME>/x", "%Z", zone=timezone(timedelta(0), "../.."))


def test_no_zone_is_local_time_with_its_summers(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/St_Johns")
        time.tzset()
        of = names("<DATETIME>", "%d_%H.%M%z", zone=None)
        found = [path(of), path(of, at=ns("2026-07-01T12:00:00+00:00"))]
    time.tzset()
    assert found == ["20_09.04-0330", "01_09.30-0230"]


@given(
    st.integers(0, 3_000_000_000),
    st.lists(st.integers(0, 10_000_000_000_000), max_size=30),
    st.sampled_from(ZONES),
    st.sampled_from(FORMATS),
)
def test_messages_are_dealt_out_by_name_in_their_order(
    start: int, offsets: list[int], zone: tzinfo, datetime_format: str
) -> None:
    of = names("<DATETIME>x", datetime_format, zone=zone)
    messages = [Message(b"", b"", start * SECOND + offset, 1) for offset in offsets]
    expected: dict[str, list[Message]] = {}
    for message in messages:
        moment = datetime.fromtimestamp(message.timestamp // SECOND, zone)
        expected.setdefault(moment.strftime(datetime_format) + "x", []).append(message)
    found = of.by_name(messages)
    assert found == expected
    assert list(found) == list(expected)


@settings(max_examples=40)
@given(NS, st.sampled_from(ZONES), st.sampled_from(FORMATS))
@example(ns("2026-10-25T00:10:00+00:00"), BERLIN, "%H")
@example(ns("1972-01-07T00:40:00+00:00"), ZoneInfo("Africa/Monrovia"), "%H%z%Z")
@example(ns("2011-12-29T12:00:00+00:00"), ZoneInfo("Pacific/Apia"), "%j")
def test_a_name_stays_until_its_next_change(at: int, zone: tzinfo, datetime_format: str) -> None:
    of, again = (names("<DATETIME>x", datetime_format, zone=zone) for _ in range(2))
    change = of.next_change(at)
    assert at < change <= at + 86_400 * SECOND
    assert of.next_change((at + change) // 2) == change or change % (60 * SECOND)
    name = again.at(at)
    assert all(again.at(at + (change - at) * n // 50) == name for n in range(50))
    if change + SECOND <= at + 86_400 * SECOND:
        assert again.at(change) != name
