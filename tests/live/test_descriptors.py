"""Many topics where few files may be open: nothing is lost."""

from __future__ import annotations

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


def test_too_few_open_files_lose_nothing_and_the_fix_is_named(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, tmp_path: Path, arguments: list[str]
) -> None:
    nsqd = make_nsqd()
    filled(nsqd)
    log = tmp_path / "stderr"
    topics = [argument for topic in TOPICS for argument in ("--topic", topic)]
    command = (*arguments, *topics, *at(nsqd), "--requeue-delay", "0s")
    with log.open("wb") as stderr:
        failed = nsqtools_cli.start(*command, "--max-duration", "3s", stderr=stderr, **limited(64))
    assert failed.wait(100) == 1
    assert "Traceback" not in log.read_text()
    assert "too many open files: raise the limit with ulimit -n" in log.read_text().lower()
    queues = {topic: nsqd.channel(topic, "c") for topic in TOPICS}
    left = [name for name, queue in queues.items() if queue["depth"] + queue["deferred_count"]]
    assert left
    assert written(tmp_path / "a") == sorted(set(TOPICS) - set(left))

    process = nsqtools_cli.start(*command, "-n", str(len(left)), **limited(400))
    assert process.wait(100) == 0
    assert written(tmp_path / "a") == TOPICS
