"""``stats`` on real clusters: what it says is what nsqds say, added up, and nsq_stat beside it."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.dead import answering
from tests.support.eventually import eventually
from tests.support.raw import Raw
from tests.support.reporting import Reports, ask, channel_of, counted, fill, http, listed, lookup

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.binaries import Nsq
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
    from tests.support.tls import Certificates


def test_numbers_of_a_cluster_are_those_of_its_nsqds_added_up(
    nsqtools_cli: Cli, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    for number, nsqd in enumerate(nsqds, 1):
        fill(nsqd, topic, count=10 * number)
    nsqds[1].pause(topic, "c")
    eventually(lambda: listed(lookupds, nsqds, topic))
    said = channel_of(ask(nsqtools_cli, *lookup(lookupds), *http(nsqds[:1])), topic)
    assert (said["depth"], said["messages"], said["paused"]) == (60, 60, True)
    paused = {each["nsqd"]: each["paused"] for each in said["nsqds"]}
    assert paused == {str(nsqd.http): nsqd is nsqds[1] for nsqd in nsqds}


@pytest.mark.nsqd_only("the sandbox has no HTTPS")
def test_an_nsqd_that_requires_tls_is_a_warning_and_counts_once_where_it_is_given_as_https(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    nsqlookupd: Nsqlookupd,
    certificates: Certificates,
    topic: str,
) -> None:
    secure = make_nsqd(
        "-tls-required=true", *certificates.server.nsqd_args(), lookupds=[nsqlookupd]
    )
    plain = make_nsqd(lookupds=[nsqlookupd])
    plain.create(topic, "c")
    https = (f"--nsqd-http-address=https://{secure.https}", "--tls-root-ca-file")
    trusting = (*https, str(certificates.ca))
    assert nsqtools_cli("topic", "create", topic, *trusting).code == 0
    assert nsqtools_cli("channel", "create", topic, "c", *trusting).code == 0
    eventually(lambda: listed([nsqlookupd], [secure, plain], topic))
    refused = nsqtools_cli("stats", "--once", *lookup([nsqlookupd]))
    assert (refused.code, f"https://{secure.https}" in refused.stderr) == (0, True)
    said = ask(nsqtools_cli, *lookup([nsqlookupd]), *trusting)
    assert {each["nsqd"] for each in channel_of(said, topic)["nsqds"]} == {
        str(secure.https),
        str(plain.http),
    }


def test_a_consumer_is_told_with_its_rates(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    def consumer(said: dict[str, Any]) -> dict[str, Any]:
        (found,) = channel_of(said, topic)["consumers"]
        return found  # type: ignore[no-any-return]

    nsqd.create(topic, "c")
    with Raw(nsqd.tcp) as raw:
        raw.identify(client_id="raw", hostname="a host", user_agent="agent of ours")
        raw.subscribe(topic, "c", ready=300)
        eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 1)
        reports = Reports(nsqtools_cli, tmp_path, *http([nsqd]), "--topic", topic, "--clients")
        reports.until(lambda said: consumer(said)["finish_rate"] == 0)
        nsqd.publish(topic, [b"x"] * 300)
        for _ in range(300):
            raw.send(f"FIN {raw.message().id}")
        last = consumer(reports.until(lambda said: consumer(said)["finished"] == 300))
        text = nsqtools_cli("stats", "--once", "--clients", *http([nsqd])).stdout.decode()
    names = ("hostname", "user_agent", "tls", "compression", "ready_count")
    assert [last[name] for name in names] == ["a host", "agent of ours", False, None, 300]
    finished = counted(reports, lambda said: consumer(said)["finish_rate"])
    assert finished == pytest.approx(300, rel=1e-3)
    (row,) = (line.split("\t") for line in text.splitlines() if line.endswith("\tagent of ours"))
    since = last["connected"]
    assert row[-6:-1] == [str(nsqd.http), "raw", "a host", last["remote_address"], since]
    assert 0 <= time.time() - datetime.fromisoformat(since).timestamp() < 600


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


def test_it_is_nsq_stat_beside_the_same_messages(
    nsqtools_cli: Cli, nsqds: list[Nsqd], nsq: Nsq, topic: str
) -> None:
    """The same columns at the same places, and the same numbers in them."""
    program = nsq.path("nsq_stat", "that stats is like nsq_stat")
    for number, nsqd in enumerate(nsqds, 1):
        fill(nsqd, topic, count=10 * number)
    flags = ["-topic", topic, "--channel=c", "-interval=50ms", "-count=30"]
    flags += [f"-nsqd-http-address={nsqd.http}" for nsqd in nsqds]
    theirs = subprocess.run([program, *flags], capture_output=True, check=True).stdout.decode()
    ours = nsqtools_cli("stats", *flags).stdout.decode()
    assert "60" in ours.splitlines()[-1].split()
    assert ours == theirs


TOPICS, CHANNELS, MOST = 500, 4, 80 << 10  # KiB


def test_a_report_of_a_large_cluster_takes_little_memory(nsqtools_cli: Cli) -> None:
    of_both = ("depth", "backend_depth", "message_count")
    counts = ("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count")
    zero = dict.fromkeys(of_both, 0) | {"paused": False, "e2e_processing_latency": {"count": 0}}
    more: dict[str, object] = {**dict.fromkeys(counts, 0), "clients": []}
    channels = [{"channel_name": f"channel-{n}", **zero, **more} for n in range(CHANNELS)]
    topics = [{"topic_name": f"topic-{n}", "channels": channels, **zero} for n in range(TOPICS)]
    stats = {"version": "1.3.0", "health": "OK", "start_time": 5, "topics": topics}
    where = []
    with ExitStack() as stack:
        for number in range(3):
            info = {
                "version": "1.3.0",
                "broadcast_address": f"host{number}",
                "tcp_port": 1,
                "http_port": 2,
            }
            address = stack.enter_context(answering({"/stats": stats, "/info": info}))
            where += ["--nsqd-http-address", str(address)]
        rows = TOPICS * (CHANNELS + 1)
        for form, lines in (((), rows + 3), (("--csv",), rows + 1), (("--json",), 1)):
            done = nsqtools_cli.measured("stats", "--once", *form, *where)
            assert (done.code, done.stdout.count(b"\n")) == (0, lines), done.stderr
            assert done.peak < MOST
