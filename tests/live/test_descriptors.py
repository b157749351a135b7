"""Many topics where few files may be open: what is consumed can always be written."""

from __future__ import annotations

import re
import resource
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.servers import at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd

TOPICS = [f"t{number:02}" for number in range(40)]


def limited(limit: int) -> dict[str, Any]:
    """Options of a process that may have so many files open."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))}


def filled(nsqd: Nsqd) -> None:
    for topic in TOPICS:
        nsqd.create(topic, "c")
        nsqd.publish(topic, [topic.encode()])


def written(folder: Path) -> list[str]:
    """The lines of all files, published or under way."""
    files = [each for each in folder.glob("t*") if each.is_file()]
    return sorted(line for each in files for line in each.read_text().splitlines())


@pytest.fixture
def arguments() -> list[str]:
    return ["to-file", "--channel", "c", "--output-dir", "a", "--sync-interval", "50ms"]


def test_named_topics_that_need_more_files_than_may_be_open_are_refused_before_anything_is_done(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, tmp_path: Path, arguments: list[str]
) -> None:
    nsqd = make_nsqd()
    filled(nsqd)
    log = tmp_path / "stderr"
    topics = [argument for topic in TOPICS for argument in ("--topic", topic)]
    command = (*arguments, *topics, *at(nsqd))
    with log.open("wb") as stderr:
        refused = nsqtools_cli.start(*command, stderr=stderr, **limited(64))
    assert refused.wait(100) == 2
    (line,) = log.read_text().splitlines()
    (enough,) = map(int, re.findall(r"ulimit -n (\d+)", line))
    assert not (tmp_path / "a").exists()
    assert not any(nsqd.channel(topic, "c")["message_count"] > 1 for topic in TOPICS)

    process = nsqtools_cli.start(*command, "-n", "40", **limited(enough))
    assert process.wait(60) == 0
    assert written(tmp_path / "a") == TOPICS
