"""``bench`` as a process on real servers: what it counts, and what it leaves behind."""

import json
import signal
import subprocess

import pytest

from nsqtools.cli import cli, exits
from nsqtools.errors import NSQError
from tests.support.eventually import eventually
from tests.support.process import Cli, Terminal
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd, at_both, lookup


@pytest.mark.parametrize(
    ("options", "measured"),
    [
        (("pub", "--batch", "300"), {"published": True}),
        (("sub", "--consumers", "2"), {"received": False}),
        (("e2e", "--rate", "0", "--producers", "2"), {"published": True, "received": True}),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_all_messages_are_counted_and_the_topic_is_deleted(
    nsqtools_cli: Cli, nsqd: Nsqd, options: tuple[str, ...], measured: dict[str, bool]
) -> None:
    """Where it is published from here there is a latency."""
    ended = nsqtools_cli("bench", *options, "-n", "1000", "--size", "50", "--json", *at_both(nsqd))
    assert ended.code == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert measured.keys() == said.keys() & {"published", "received"}
    for direction, has_latency in measured.items():
        facts = said[direction]
        assert (facts["messages"], facts["bytes"]) == (1000, 50_000)
        assert facts["messages_per_second"] > 0
        assert (facts["p50"] is not None) == has_latency
        assert not has_latency or 0 < facts["p50"] <= facts["p99"] <= facts["max"]
    assert nsqd.stats()["topics"] == []


def test_a_signal_prints_the_results_and_deletes_the_topic(nsqtools_cli: Cli, nsqd: Nsqd) -> None:
    bench = nsqtools_cli.start(
        *("bench", "e2e", "--duration", "10m", "--json", *at_both(nsqd)), stdout=subprocess.PIPE
    )
    eventually(lambda: any(each["message_count"] > 9 for each in nsqd.stats()["topics"]))
    bench.send_signal(signal.SIGINT)
    stdout, _ = bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert json.loads(stdout)["published"]["messages"] > 9
    assert nsqd.stats()["topics"] == []


def test_a_terminal_shows_progress(nsqtools_cli: Cli, nsqd: Nsqd) -> None:
    with Terminal(nsqtools_cli, "bench", "e2e", "--duration", "10m", *at_both(nsqd)) as terminal:
        terminal.until(" published, ")
        terminal.until(" received, ")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130


@pytest.mark.nsqd_only("it logs the topics that it creates")
def test_every_nsqd_of_nsqlookupd_gets_the_load_and_nobody_knows_the_topic_afterwards(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    assert nsqtools_cli("bench", "sub", *lookup([nsqlookupd])).code == 3
    nsqds = [make_nsqd(lookupds=[nsqlookupd]) for _ in range(2)]
    eventually(lambda: len(json.loads(nsqlookupd.request("GET", "/nodes"))["producers"]) == 2)
    options = ("-n", "2000", "--batch", "10", "--json", *lookup([nsqlookupd]))
    ended = nsqtools_cli("bench", "sub", *options)
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout)["received"]["messages"] == 2000
    for nsqd in nsqds:
        assert nsqd.stats()["topics"] == []
        assert b"nsqtools-bench-" in nsqd.log.read_bytes()
    assert json.loads(nsqlookupd.request("GET", "/topics"))["topics"] == []


@pytest.mark.nsqd_only("it drops what does not fit in memory")
def test_messages_that_do_not_arrive_are_counted_and_told_by_status_4(
    make_nsqd: MakeNsqd,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("nsqtools.cli.commands.bench.run._SILENCE", 0.5)
    nsqd = make_nsqd("-mem-queue-size=0")
    options = ("--topic", f"{topic}#ephemeral", "-n", "1000", "--json", *at_both(nsqd))
    assert exits.run(cli, ["bench", "sub", *options]) == 4
    out, err = capsys.readouterr()
    received = json.loads(out)["received"]["messages"]
    assert received < 1000
    assert f" {1000 - received} messages did not arrive" in err.replace(",", "")
    assert nsqd.stats()["topics"] == []


def test_a_topic_that_cannot_be_deleted_is_named_and_told_by_status_4(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(*_: object) -> None:
        raise NSQError("nsqd went away")

    monkeypatch.setattr("nsqtools.cli.commands.bench.topic.carry_out", fail)
    assert exits.run(cli, ["bench", "pub", "-n", "10", "--json", *at_both(nsqd)]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["published"]["messages"] == 10
    (left,) = (each["topic_name"] for each in nsqd.stats()["topics"])
    assert f"nsqd went away: topic {left} may still exist" in err
