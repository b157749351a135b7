"""``to-http`` as a process whose failures pass fast, and what it leaves as dead letters."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.consuming import QUICK, Consuming

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
