"""``node drain`` as a process on a real nsqd that is to be taken out."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.reporting import fill, lookup, registered

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd

PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def held(nsqd: Nsqd) -> dict[tuple[str, str], int]:
    """What each channel and each topic holds."""
    found = {}
    for topic in nsqd.stats()["topics"] or ():
        found[topic["topic_name"], ""] = topic["depth"]
        for each in topic["channels"]:
            total = each["depth"] + each["in_flight_count"] + each["deferred_count"]
            found[topic["topic_name"], each["channel_name"]] = total
    return found


def test_what_never_drains_is_named_and_kept(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    for topic in ("left", "shut"):
        fill(nsqd, topic)
    nsqd.create("bare")
    nsqd.publish("bare", [b"x"])
    nsqd.pause("shut", "c")
    registered("left", [nsqlookupd])
    before = held(nsqd)
    words = ("node", "drain", str(nsqd.http), "--timeout", "1s", "--json")
    ended = nsqtools_cli(*words, "--evict", *lookup([nsqlookupd]))
    assert ended.code == 4
    said = json.loads(ended.stdout)
    named = {(e["topic"], e["channel"]): bool(e["note"]) for e in said["left"]}
    assert (said["drained"], named) == (
        False,
        dict.fromkeys([("bare", "-"), ("left", "c"), ("shut", "c")], True),
    )
    assert held(nsqd) == before
    (node,) = json.loads(nsqlookupd.request("GET", "/nodes"))["producers"]
    assert node["tombstones"] == [True] * 3
    assert not nsqlookupd.lookup("left")
    assert nsqtools_cli(*words, "--evict").code == 2
    nsqlookupd.stop()
    assert nsqtools_cli(*words, "--evict", *lookup([nsqlookupd])).code == 3
    nsqd.stop()
    assert nsqtools_cli(*words).code == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 4)])
def test_a_signal_ends_the_wait_and_is_no_success(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, number: int, code: int
) -> None:
    fill(nsqd, topic)
    drain = nsqtools_cli.start("node", "drain", str(nsqd.http), **PIPES)
    assert drain.stderr
    assert b"has no consumer" in drain.stderr.readline()
    drain.send_signal(number)
    drain.communicate(timeout=60)
    assert drain.returncode == code
    assert nsqd.channel(topic, "c")["depth"] == 3
