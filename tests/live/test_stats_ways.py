"""``stats`` on real servers: consumers, latencies, endings, and nsq_stat beside it."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.eventually import eventually
from tests.support.raw import Raw
from tests.support.reporting import Reports, ask, channel_of, counted, http, lookup

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.binaries import Nsq
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd


def test_consumers_are_told_apart_with_their_rates(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    nsqtools_cli.start(
        *("tail", "--topic", topic, "--channel", "c", "--nsqd-tcp-address", str(nsqd.tcp)),
        *("--snappy", "--max-in-flight", "7"),
    )
    with Raw(nsqd.tcp) as raw:
        raw.identify(client_id="raw", hostname="a host", user_agent="agent of ours")
        raw.subscribe(topic, "c")
        eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 2)
        where = (*http([nsqd]), "--topic", topic, "--clients")
        reports = Reports(nsqtools_cli, tmp_path, *where)

        def consumers(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
            found = channel_of(said, topic)["consumers"]
            return {
                each["client_id"] if each["client_id"] == "raw" else "tail": each for each in found
            }

        reports.until(lambda said: consumers(said)["tail"]["finish_rate"] == 0)
        nsqd.publish(topic, [b"x"] * 300)
        reports.until(lambda said: consumers(said)["tail"]["finished"] == 300)
        text = nsqtools_cli("stats", "--once", "--clients", *http([nsqd])).stdout.decode()
    last = consumers(reports.seen[-1])
    assert (last["tail"]["compression"], last["tail"]["ready_count"]) == ("snappy", 7)
    assert "nsqtools/" in last["tail"]["user_agent"]
    assert (last["raw"]["hostname"], last["raw"]["user_agent"]) == ("a host", "agent of ours")
    assert (last["raw"]["tls"], last["raw"]["compression"], last["raw"]["finished"]) == (
        False,
        None,
        0,
    )
    finished = counted(reports, lambda said: consumers(said)["tail"]["finish_rate"])
    assert finished == pytest.approx(300, rel=1e-3)
    assert f"{topic} c {nsqd.http} a host agent of ours" in text


@pytest.mark.nsqd_only("the sandbox keeps no latencies")
def test_percentiles_of_the_latency_are_shown_where_nsqd_keeps_them(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd(
        "-e2e-processing-latency-percentile=0.99,0.5", "-e2e-processing-latency-window-time=10m"
    )
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"])
    with Raw(nsqd.tcp) as consumer:
        consumer.identify()
        consumer.subscribe(topic, "c", ready=1)
        consumer.send(f"FIN {consumer.message().id}")
        consumer.settle()
    expected = nsqd.channel(topic, "c")["e2e_processing_latency"]
    seconds = {each["quantile"]: each["value"] / 1e9 for each in expected["percentiles"]}
    said = channel_of(ask(nsqtools_cli, *http([nsqd])), topic)
    assert said["latency"] == {"p99": seconds[0.99], "p50": seconds[0.5]}
    text = nsqtools_cli("stats", "--once", *http([nsqd])).stdout.decode()
    assert f" | {topic} c p99=" in text


def test_it_ends_with_3_only_if_nobody_answers(
    nsqtools_cli: Cli, nsqds: list[Nsqd], lookupds: list[Nsqlookupd]
) -> None:
    nsqds[0].kill()
    lookupds[0].kill()
    addresses = (*http(nsqds), *lookup(lookupds))
    some = nsqtools_cli("stats", "--once", *addresses)
    assert some.code == 0
    assert sorted(str(each.http) in some.stderr for each in (nsqds[0], lookupds[0])) == [True, True]
    for server in (*nsqds[1:], lookupds[1]):
        server.kill()
    none = nsqtools_cli("stats", *addresses)
    assert (none.code, none.stdout) == (3, b"")
    assert none.stderr.startswith("nsqtools: no nsqd answers: ")
    assert none.stderr.count("\n") == 1


def test_a_cluster_without_any_nsqd_is_no_empty_report(
    nsqtools_cli: Cli, nsqlookupd: Nsqlookupd
) -> None:
    done = nsqtools_cli("stats", "--once", *lookup([nsqlookupd]))
    assert (done.code, done.stdout) == (3, b"")
    assert done.stderr.startswith("nsqtools: no nsqlookupd lists an nsqd: ")


def test_what_no_nsqd_has_is_a_failure(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    done = nsqtools_cli("stats", "--once", "--topic", topic, "--channel", "c", *http([nsqd]))
    assert (done.code, done.stdout) == (1, b"")
    assert done.stderr == (
        f"nsqtools: warning: topic {topic}, channel c: no nsqd that answers has it\n"
    )


def test_signals_end_it(nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    nsqd.create(topic, "c")
    for number, code in ((2, 130), (15, 0), (1, 0)):
        reports = Reports(nsqtools_cli, tmp_path, *http([nsqd]))
        reports.until(lambda said: bool(said["topics"]))
        reports.process.send_signal(number)
        assert reports.process.wait(20) == code


def test_it_is_nsq_stat_beside_the_same_traffic(
    nsqtools_cli: Cli, nsqds: list[Nsqd], nsq: Nsq, topic: str, tmp_path: Path
) -> None:
    """Sums over all samples, times the interval, are the messages: both count them all."""
    program = nsq.path("nsq_stat", "that stats is like nsq_stat")
    for nsqd in nsqds:
        nsqd.create(topic, "c")
    flags = ["-topic", topic, "--channel=c", "-interval=100ms"]
    flags += [f"-nsqd-http-address={nsqd.http}" for nsqd in nsqds]
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    with theirs.open("wb") as output:
        go = subprocess.Popen([program, *flags], stdout=output, stderr=subprocess.PIPE)
    try:
        with ours.open("wb") as output:
            nsqtools_cli.start("stats", *flags, stdout=output)
        reports = Reports(nsqtools_cli, tmp_path, *flags)
        last = reports.until(lambda said: channel_of(said, topic)["ingress"] == 0)
        eventually(lambda: len(theirs.read_bytes().splitlines()) > 2)
        eventually(lambda: len(ours.read_bytes().splitlines()) > 2)
        for nsqd in nsqds:
            nsqtools_cli.start(
                *("tail", "--topic", topic, "--channel", "c"),
                *("--nsqd-tcp-address", str(nsqd.tcp), "-n", "2000"),
            )
        for _ in range(20):
            for nsqd in nsqds:
                nsqd.publish(topic, [b"x"] * 100)
            last = reports.until(lambda said: True)
        done = {"messages": 6000, "depth": 0, "in_flight": 0, "clients": 0, "ingress": 0}
        last = reports.until(
            lambda said: all(channel_of(said, topic)[name] == n for name, n in done.items())
        )
        words = ["0", "0", "|", *"00000", "|", "0", "0", "6000", "0"]
        for path in (theirs, ours):
            eventually(lambda path=path: path.read_text().splitlines()[-1].split() == words)  # type: ignore[misc]
        # The header comes again, at the same place.
        for path in (theirs, ours):
            eventually(lambda path=path: len(path.read_text().splitlines()) > 60)  # type: ignore[misc]
    finally:
        go.kill()
        go.communicate()
    assert channel_of(last, topic)["missing"] == 0
    for name in ("ingress", "egress"):
        number = counted(reports, lambda said, name=name: channel_of(said, topic)[name])  # type: ignore[misc]
        # Each nsqd is measured between its own answers, and the interval of a report is their mean.
        assert number == pytest.approx(6000, rel=0.1)
    one, other = (path.read_text().splitlines() for path in (theirs, ours))
    heads = [[n for n, line in enumerate(lines[:60]) if "rate" in line] for lines in (one, other)]
    assert heads[0] == heads[1] == [0, 26, 53]
    assert one[:2] == other[:2]
    assert one[-1] == other[-1]
    bars = [[n for n, char in enumerate(line) if char == "|"] for line in (one[2], other[2])]
    assert bars[0] == bars[1]
    ingress = sum(int(line.split()[0]) * 0.1 for line in one if line.split()[0].isdigit())
    assert ingress == pytest.approx(6000, rel=0.01)


def test_a_reader_that_goes_away_ends_it_as_by_sigpipe(nsqtools_cli: Cli, nsqd: Nsqd) -> None:
    nsqd.create("t")
    where = ("stats", "--interval", "50ms", *http([nsqd]))
    process = nsqtools_cli.start(*where, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline().startswith(b"------rate")
    process.stdout.close()
    assert process.wait(20) == -13
