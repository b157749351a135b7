"""``bench`` as a process on real servers: what it counts, and what it leaves behind."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.eventually import eventually
from tests.support.servers import at

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd

PROMPT = ("--consumer-opt", "output_buffer_size,-1")


def to(nsqd: Nsqd) -> tuple[str, ...]:
    return *at(nsqd), "--nsqd-http-address", str(nsqd.http)


def topics(nsqd: Nsqd) -> list[str]:
    return [each["topic_name"] for each in nsqd.stats()["topics"]]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("pub", "--batch", "300"), {"published": True}),
        (("sub", "--consumers", "2"), {"received": False}),
        (("e2e", "--rate", "0", "--producers", "2"), {"published": True, "received": True}),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_all_messages_are_counted_and_the_topic_is_deleted(
    nsqtools_cli: Cli, nsqd: Nsqd, options: tuple[str, ...], found: dict[str, bool]
) -> None:
    ended = nsqtools_cli("bench", *options, "-n", "1000", "--size", "50", "--json", *to(nsqd))
    assert ended.code == 0, ended.stderr
    said = json.loads(ended.stdout)
    for direction in ("published", "received"):
        facts = said.get(direction)
        assert bool(facts) == (direction in found)
        if facts:
            assert (facts["messages"], facts["bytes"]) == (1000, 50_000)
            assert facts["messages_per_second"] > 0
            assert (facts["p50"] is not None) == found[direction]
            assert not found[direction] or 0 < facts["p50"] <= facts["p99"] <= facts["max"]
    assert topics(nsqd) == []


def test_a_topic_that_exists_is_refused_or_kept(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    asked = ("bench", "e2e", "--topic", topic, "-n", "20", "--csv", *PROMPT, *to(nsqd))
    assert nsqtools_cli(*asked, "--existing").code == 1
    nsqd.create(topic, "others")
    assert nsqtools_cli(*asked).code == 2
    assert nsqd.topic(topic)["message_count"] == 0
    ended = nsqtools_cli(*asked, "--existing")
    assert ended.code == 0, ended.stderr
    rows = list(csv.DictReader(ended.stdout.decode().splitlines()))
    assert [(row["direction"], row["messages"]) for row in rows] == [
        ("published", "20"),
        ("received", "20"),
    ]
    assert nsqd.channel(topic, "others")["depth"] == 20
    eventually(lambda: len(nsqd.topic(topic)["channels"]) == 1)


def test_a_signal_prints_the_results_and_deletes_the_topic(nsqtools_cli: Cli, nsqd: Nsqd) -> None:
    bench = nsqtools_cli.start(
        *("bench", "e2e", "--duration", "10m", "--json", *to(nsqd)), stdout=subprocess.PIPE
    )
    eventually(lambda: any(each["message_count"] > 9 for each in nsqd.stats()["topics"]))
    bench.send_signal(signal.SIGINT)
    stdout, _ = bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert json.loads(stdout)["published"]["messages"] > 9
    assert topics(nsqd) == []


@pytest.mark.nsqd_only("it logs the topics that it creates")
def test_every_nsqd_of_nsqlookupd_gets_the_load_and_nobody_knows_the_topic_afterwards(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqds = [make_nsqd(lookupds=[nsqlookupd]) for _ in range(2)]

    def known() -> Any:
        return json.loads(nsqlookupd.request("GET", "/nodes"))["producers"]

    eventually(lambda: len(known()) == 2)
    where = ("--lookupd-http-address", str(nsqlookupd.http))
    ended = nsqtools_cli("bench", "sub", "-n", "2000", "--batch", "10", "--json", *where)
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout)["received"]["messages"] == 2000
    for nsqd in nsqds:
        assert topics(nsqd) == []
        assert b"nsqtools-bench-" in nsqd.log.read_bytes()
    assert json.loads(nsqlookupd.request("GET", "/topics"))["topics"] == []


@pytest.mark.full("bench waits for missing messages for seconds")
@pytest.mark.nsqd_only("it drops what does not fit in memory")
def test_messages_that_do_not_arrive_are_told_by_status_4(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-mem-queue-size=0")
    name = f"{topic}#ephemeral"
    ended = nsqtools_cli("bench", "sub", "--topic", name, "-n", "1000", "--json", *to(nsqd))
    assert ended.code == 4, ended.stderr
    assert json.loads(ended.stdout)["received"]["messages"] < 1000
    assert topics(nsqd) == []
