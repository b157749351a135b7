"""What a path says about the archive file that has it."""

from __future__ import annotations

import posixpath
import re
from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.policy.filenames import SECOND, FileNames, NamePattern
from nsqtools.policy.matcher import NameMatcher

DEFAULT = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
HOST = "web1.example.com"
ZONES = [
    UTC,
    ZoneInfo("Europe/Berlin"),
    ZoneInfo("Asia/Kathmandu"),  # +0545
    ZoneInfo("Africa/Monrovia"),  # MMT, -004430 until 1972
    ZoneInfo("America/Sao_Paulo"),  # -03
    timezone(timedelta(minutes=7, seconds=13)),  # UTC+00:07:13
]


def pattern(
    filename_format: str = DEFAULT, datetime_format: str = "%Y-%m-%d_%H", **options: str
) -> NamePattern:
    return NamePattern(filename_format=filename_format, datetime_format=datetime_format, **options)


def read(path: str, *topics: str, of: NamePattern | None = None, matching: str = "") -> str | None:
    wanted = re.compile(matching) if matching else topics
    return NameMatcher(of or pattern(), hostname=HOST, topics=wanted).match(path)


DIRECTIVES = [
    *(f"%{letter}" for letter in "aAbBcCdDeFgGhHIjklmMpPrRsSTuUVwWxXyYzZ"),
    *(f"%{flag}{letter}" for flag in "-_0^#" for letter in "aAbBcCdDeFgGhHIjklmMpPrRSTuUVwWxXyY"),
]
TOPICS = st.from_regex(r"[.a-zA-Z0-9_-]{1,12}(#ephemeral)?", fullmatch=True) | st.sampled_from(
    [".", "..", "...", "-000001", "a-000001", "a.gz", ".gz", "events.web1", "x" * 64]
)
LITERALS = st.sampled_from(
    [".", "/", "./", "-", "_", "a", "é", "%%", "(x)*", "dt=", "<x>", "g", "\n"]
)
REVISIONS = st.integers(0, 3) | st.integers(0, 999_999)
PARTS = st.lists(
    st.sampled_from(["<TOPIC>", "<HOST>", "<PID>", "<DATETIME>", "<REV>"])
    | LITERALS.filter(lambda text: text != "<x>"),  # no token
    max_size=4,
).map("".join)
FORMATS = st.tuples(
    PARTS, st.sampled_from(["<REV>", "<REV>", "-"]), PARTS, st.sampled_from(["", "<TOPIC>"])
)
TIMES = st.lists(st.sampled_from(DIRECTIVES) | LITERALS, max_size=6).map("".join)
PATTERNS = st.fixed_dictionaries(
    {"filename_format": FORMATS.map("".join), "datetime_format": TIMES},
    optional={
        "host_identifier": st.sampled_from(["<HOSTNAME>", "dc/<SHORT_HOST>", "h-000001", "."]),
        "suffix": st.sampled_from([".gz", ".zst"]),
        "repeated_by": st.just("--rotate-size"),
    },
)
NS = st.integers(0, 4_000_000_000).map(lambda second: second * SECOND) | st.integers(
    -(2**62), 2**63 - 1
)


def made(
    options: dict[str, str], topic: str, at: int, pid: int, revision: int, zone: tzinfo
) -> tuple[NamePattern, str]:
    """A path as FileNames makes it, and what it was made of; no example where it refuses to."""
    try:
        of = NamePattern(**options)
        names = FileNames(of, topic=topic, hostname=HOST, pid=pid, zone=zone)
        return of, names.path(names.at(at), revision)
    except ConfigError:
        assume(False)
        raise


@settings(max_examples=150)
@given(PATTERNS, TOPICS, NS, st.integers(1, 2**22), REVISIONS, st.sampled_from(ZONES))
def test_every_path_that_names_give_is_its_topics(
    options: dict[str, str], topic: str, at: int, pid: int, revision: int, zone: tzinfo
) -> None:
    of, path = made(options, topic, at, pid, revision, zone)
    matcher = NameMatcher(of, hostname=HOST, topics={topic})
    assert matcher.match(path) == topic
    parent = path
    while parent := posixpath.dirname(parent):
        assert matcher.descend(parent)


def test_each_directive_is_matched_all_year_round() -> None:
    for directive in DIRECTIVES:
        of = pattern("<DATETIME><TOPIC>", f"{directive}+")
        matcher = NameMatcher(of, hostname=HOST, topics=("a",))
        for zone in ZONES:
            names = FileNames(of, topic="a", hostname=HOST, pid=1, zone=zone)
            for day in range(0, 4000, 397):
                assert matcher.match(names.at((day * 86_400 + day * 5003) * SECOND)) == "a"


@pytest.mark.parametrize(
    "path",
    [
        "events.web2.2026-11-20_12.log",
        "events.web1.example.com.2026-11-20_12.log",
        "events.web1-0000001.2026-11-20_12.log",
        "events.web1.2026-11-20_1.log",
        "events.web1.2026-11-20_1२.log",
        "events.web1.2026-11-20_12.log.gz",
        "events.web1.2026-11-20_12.log\n",
        "a/events.web1.2026-11-20_12.log",
        "",
    ],
)
def test_files_of_other_hosts_topics_and_makers_are_not_ours(path: str) -> None:
    assert read(path, "events") is None


def test_a_known_topic_is_better_than_a_revision_and_that_than_a_guess() -> None:
    of = pattern("<TOPIC><REV>")
    assert read("a-000001", "a", of=of) == "a"
    assert read("a-000001", "a", "a-000001", of=of) == "a-000001"
    assert read("a-000001", of=of, matching="a") == "a"
    assert read("a-000001", of=of, matching="1$") == "a-000001"
    numbered = pattern("<TOPIC><REV>", repeated_by="--gzip")
    assert read("a-000001-000000", "a", "a-000001", of=numbered) == "a-000001"
    assert read("a-000001", "a", "a-000001", of=numbered) == "a"
    assert read("a", "a", of=numbered) == "a"  # of a time when it was not numbered
    ambiguous = pattern("<TOPIC><PID>")
    assert read("a123", of=ambiguous, matching=".") == "a"
    assert read("a123", of=ambiguous, matching="^a12$") == "a12"
    assert read("a123", of=ambiguous, matching="3") is None


def test_a_format_without_topic_tells_only_of_a_single_one() -> None:
    of = pattern("all<REV>")
    assert read("all-000002", "a", "a", of=of) == "a"
    assert read("all-000002", "a", "b", of=of) == ""
    assert read("all-000002", of=of, matching="a") == ""


def test_the_suffix_is_that_of_the_format_or_appended_to_it() -> None:
    of = pattern("<TOPIC>", suffix=".gz")
    assert read("a.gz", "a", of=of) == "a"
    assert read("a.gz.gz", "a.gz", of=of) == "a.gz"
    assert read("a", "a", of=of) is None
    assert read("a.gz", "a", of=pattern("<TOPIC>.gz", suffix=".gz")) == "a"


def test_only_directories_on_the_way_to_archives_are_entered() -> None:
    of = pattern("x/<DATETIME><TOPIC>/<HOST>.log", "dt=%Y-%m-%d/hour=%H/")
    matcher = NameMatcher(of, hostname=HOST, topics={"a", "b"})
    for directory in ("x", "x/dt=2026-11-20", "x/dt=2026-11-20/hour=23/b"):
        assert matcher.descend(directory)
    for directory in (
        "y",
        "x/y",
        "x/dt=2026-11-20/hour=23/c",
        "x/dt=2026-11-20/hour=23/a/web1.log",
    ):
        assert not matcher.descend(directory)
    assert not NameMatcher(pattern(), hostname=HOST, topics={"a"}).descend("a")


def test_words_in_a_time_are_those_that_strftime_writes() -> None:
    of = pattern("<TOPIC>.<DATETIME><REV>.log", "%A-%b-%p")
    assert read("a.Friday-Nov-PM.log", "a", of=of) == "a"
    assert read("a.backup-Nov-PM.log", "a", of=of) is None
