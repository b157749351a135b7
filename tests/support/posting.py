"""``to-http`` as a process whose failures pass fast, and what it leaves as dead letters."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.binaries import expect_nsq
from tests.support.consuming import QUICK, Consuming, make_known
from tests.support.servers import Nsqd, SandboxNsqd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DIRECT = {"http_proxy": "", "https_proxy": "", "all_proxy": ""}
"""Environment in which there is no proxy."""


@dataclass(frozen=True, slots=True)
class Posting(Consuming):
    """``to-http`` and a topic of its own; without a proxy unless a test asks for one."""

    name = "to-http"

    @property
    def environment(self) -> Mapping[str, str]:
        return DIRECT

    def usual(self) -> tuple[str, ...]:
        return QUICK

    def numbers(self, count: int) -> None:
        """Publish the numbers below ``count``."""
        self.publish(b"%d" % number for number in range(count))

    def dead_after(self, attempts: int) -> tuple[str, ...]:
        """Options that make dead letters after so many attempts; 0 is never."""
        limit = ("--max-attempts", str(attempts)) if attempts else ()
        return (*limit, "--dead-letter-dir", str(self.folder / "dead"))

    def dead_letters(self) -> list[dict[str, Any]]:
        """All of them, by their bodies."""
        files = (self.folder / "dead").glob("*.dead.jsonl")
        lines = [line for path in files for line in path.read_text().splitlines()]
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return sorted(found, key=lambda letter: str(letter.get("body")))


class Pool:
    """An nsqd with channels that it looks at; ``take`` gives each of them once."""

    def __init__(self, nsqd: Nsqd, size: int) -> None:
        self.nsqd = nsqd
        self._topics = [f"topic{number}" for number in range(size)]
        make_known(nsqd, *self._topics)

    def take(self) -> str:
        """A topic that nobody used, with a channel ``c``."""
        return self._topics.pop()


@contextmanager
def pool(folder: Path, size: int, *args: str) -> Iterator[Pool]:
    """A pool on a real nsqd that looks at all of its channels ten times a second.

    Where there is none it is the sandbox's: what endpoints do need not be seen with both.
    """
    real = expect_nsq(build=True)
    scan = f"-queue-scan-selection-count={size}"
    with Nsqd(folder, scan, *args) if real else SandboxNsqd(folder, *args) as nsqd:
        yield Pool(nsqd, size)
