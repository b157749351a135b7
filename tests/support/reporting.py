"""Filling clusters that commands are asked about, running ``stats`` on them, and reading it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import TYPE_CHECKING, Any

from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import Nsqd, Nsqlookupd


def http(nsqds: Iterable[Nsqd]) -> list[str]:
    return [word for nsqd in nsqds for word in ("--nsqd-http-address", str(nsqd.http))]


def lookup(lookupds: Iterable[Nsqlookupd]) -> list[str]:
    return [word for each in lookupds for word in ("--lookupd-http-address", str(each.http))]


def fill(nsqd: Nsqd, topic: str, channel: str = "c", count: int = 3) -> None:
    """Create them, and publish so many messages that then are in the channel."""
    nsqd.create(topic, channel)
    nsqd.publish(topic, [b"x"] * count)
    eventually(lambda: nsqd.channel(topic, channel)["depth"] == count)


def registered(topic: str, lookupds: Iterable[Nsqlookupd], count: int = 1) -> None:
    """Wait until each of them lists the topic at so many nsqds."""
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: len(lookupd.lookup(topic)) == count)  # type: ignore[misc]


class Reports:
    """``stats --json`` at work: a report after another."""

    def __init__(self, cli: Cli, folder: Path, *args: str) -> None:
        self.log = folder / "stats.log"
        with self.log.open("wb") as stderr:
            self.process = cli.start(
                *("stats", "--json", "--interval", "100ms", *args),
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self.seen: list[dict[str, Any]] = []

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first report from now on of which this holds."""
        assert self.process.stdout
        for _ in range(300):
            line = self.process.stdout.readline()
            assert line, self.log.read_text()
            self.seen.append(json.loads(line))
            with contextlib.suppress(LookupError):  # not there yet
                if holds(self.seen[-1]):
                    return self.seen[-1]
        raise AssertionError(f"in no report; last: {self.seen[-1]}")

    def warnings(self) -> list[str]:
        return self.log.read_text().splitlines()


def channel_of(said: dict[str, Any], topic: str) -> dict[str, Any]:
    """The part of a topic's channel c in a report; LookupError if it has none."""
    for above in said["topics"]:
        for each in above["channels"]:
            if (above["topic"], each["channel"]) == (topic, "c"):
                found: dict[str, Any] = each
                return found
    raise LookupError(f"no channel {topic}/c")


def counted(reports: Reports, rate: Callable[[dict[str, Any]], float | None]) -> float:
    """What such a rate of all reports amounts to; nearly, if it is of several nsqds."""
    return sum((rate(said) or 0.0) * float(said["interval"]) for said in reports.seen)


def ask(cli: Cli, *args: str) -> dict[str, Any]:
    """The one report of --once, in JSON."""
    done = cli("stats", "--once", "--json", *args)
    assert (done.code, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def listed(lookupds: Sequence[Nsqlookupd], nsqds: Sequence[Nsqd], topic: str) -> bool:
    found = {tcp for each in lookupds for tcp in each.lookup(topic)}
    return found == {nsqd.tcp for nsqd in nsqds}
