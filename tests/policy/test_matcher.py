"""What a path says about the archive file that has it."""

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


KNOWN, OTHER, GUESSED = pattern("<TOPIC><REV>"), pattern("all<REV>"), pattern("<TOPIC><PID>")
NUMBERED = pattern("<TOPIC><REV>", repeated_by="--gzip")
PACKED = pattern("<TOPIC>", suffix=".gz")
WORDS = pattern("<TOPIC>.<DATETIME><REV>.log", "%A-%b-%p")


@pytest.mark.parametrize(
    ("of", "topics", "path", "topic"),
    [
        # Files of other hosts, topics and makers are not ours.
        (pattern(), ["events"], "events.web2.2026-11-20_12.log", None),
        (pattern(), ["events"], "events.web1.example.com.2026-11-20_12.log", None),
        (pattern(), ["events"], "events.web1-0000001.2026-11-20_12.log", None),
        (pattern(), ["events"], "events.web1.2026-11-20_1.log", None),
        (pattern(), ["events"], "events.web1.2026-11-20_1२.log", None),
        (pattern(), ["events"], "events.web1.2026-11-20_12.log.gz", None),
        (pattern(), ["events"], "events.web1.2026-11-20_12.log\n", None),
        (pattern(), ["events"], "a/events.web1.2026-11-20_12.log", None),
        (pattern(), ["events"], "", None),
        # A known topic is better than a revision, and that than a guess.
        (KNOWN, ["a"], "a-000001", "a"),
        (KNOWN, ["a", "a-000001"], "a-000001", "a-000001"),
        (KNOWN, re.compile("a"), "a-000001", "a"),
        (KNOWN, re.compile("1$"), "a-000001", "a-000001"),
        (NUMBERED, ["a", "a-000001"], "a-000001-000000", "a-000001"),
        (NUMBERED, ["a", "a-000001"], "a-000001", "a"),
        (NUMBERED, ["a"], "a", "a"),  # of a time when it was not numbered
        (GUESSED, re.compile("."), "a123", "a"),
        (GUESSED, re.compile("^a12$"), "a123", "a12"),
        (GUESSED, re.compile("3"), "a123", None),
        # A format without topic tells only of a single one.
        (OTHER, ["a", "a"], "all-000002", "a"),
        (OTHER, ["a", "b"], "all-000002", ""),
        (OTHER, re.compile("a"), "all-000002", ""),
        # The suffix is that of the format or appended to it.
        (PACKED, ["a"], "a.gz", "a"),
        (PACKED, ["a.gz"], "a.gz.gz", "a.gz"),
        (PACKED, ["a"], "a", None),
        (pattern("<TOPIC>.gz", suffix=".gz"), ["a"], "a.gz", "a"),
        # Words in a time are those that strftime writes.
        (WORDS, ["a"], "a.Friday-Nov-PM.log", "a"),
        (WORDS, ["a"], "a.backup-Nov-PM.log", None),
    ],
)
def test_a_path_is_of_this_topic(
    of: NamePattern, topics: list[str] | re.Pattern[str], path: str, topic: str | None
) -> None:
    assert NameMatcher(of, hostname=HOST, topics=topics).match(path) == topic


def test_only_directories_on_the_way_to_archives_are_entered() -> None:
    of = pattern("x/<DATETIME><TOPIC>/<HOST>.log", "dt=%Y-%m-%d/hour=%H/")
    matcher = NameMatcher(of, hostname=HOST, topics={"a", "b"})
    for directory in ("x", "x/dt=2026-11-20", "x/dt=2026-11-20/hour=23/b"):
        assert matcher.descend(directory)
    day = "x/dt=2026-11-20/hour=23"
    for directory in ("y", "x/y", f"{day}/c", f"{day}/a/web1.log"):
        assert not matcher.descend(directory)
    assert not NameMatcher(pattern(), hostname=HOST, topics={"a"}).descend("a")
