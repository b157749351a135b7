"""``stats`` on real clusters: what it says is what nsqds say, added up, and nsq_stat beside it."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.binaries import Nsq
from tests.support.dead import answering
from tests.support.metrics import Serving
from tests.support.nagios import Output, read
from tests.support.process import Cli, Terminal
from tests.support.raw import Raw
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd, fill, http, lookup, registered
from tests.support.tls import Certificates


@pytest.fixture
def filled(nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str) -> list[Nsqd]:
    """Three that nsqlookupds know, with 10, 20 and 30 messages in channel c."""
    for number, nsqd in enumerate(nsqds, 1):
        fill(nsqd, topic, count=10 * number)
    registered(topic, lookupds, 2)
    return nsqds


def ask(cli: Cli, topic: str, *args: str) -> dict[str, Any]:
    """What is said of the topic's only channel."""
    done = cli("stats", "--once", "--json", "--topic", topic, *args)
    assert (done.code, done.stderr) == (0, "")
    ((found,),) = (each["channels"] for each in json.loads(done.stdout)["topics"])
    return found  # type: ignore[no-any-return]


def test_numbers_of_a_cluster_are_those_of_its_nsqds_added_up(
    nsqtools_cli: Cli, filled: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    filled[1].pause(topic, "c")
    said = ask(nsqtools_cli, topic, *lookup(lookupds), *http(filled[:1]))
    assert (said["depth"], said["messages"], said["paused"]) == (60, 60, True)
    twice = ("--json", "--count", "1", "--interval", "100ms", *http(filled))
    assert 0.01 < json.loads(nsqtools_cli("stats", *twice).stdout)["interval"] < 60
    paused = {each["nsqd"]: each["paused"] for each in said["nsqds"]}
    assert paused == {str(nsqd.http): nsqd is filled[1] for nsqd in filled}


@pytest.mark.nsqd_only("the sandbox has no HTTPS")
def test_an_nsqd_that_wants_a_client_certificate_for_https(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, certificates: Certificates, topic: str
) -> None:
    nsqd = make_nsqd(*certificates.strict_nsqd_args())
    fill(nsqd, topic)
    asked = ("--once", "--nsqd-http-address", f"https://{nsqd.https}")
    for trust in (("--tls-root-ca-file", str(certificates.ca)), ("--tls-insecure-skip-verify",)):
        refused = nsqtools_cli("stats", *asked, *trust)
        assert (refused.code, "--tls-cert" in refused.stderr) == (3, True)
        said = ask(nsqtools_cli, topic, *asked, *trust, *certificates.client.options())
        assert said["depth"] == 3
    lone = nsqtools_cli("stats", *asked, "--tls-cert", str(certificates.client.cert))
    assert (lone.code, "--tls-key" in lone.stderr) == (2, True)


def test_a_check_is_of_all_nsqds_together(
    nsqtools_cli: Cli, filled: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    def check(*args: str) -> Output:
        ended = nsqtools_cli("stats", "--check", "--topic", topic, *args)
        output = read(ended.stdout.decode())
        assert (ended.code, ended.stderr) == (output.code, "")
        return output

    with Raw(filled[2].tcp) as client:
        client.subscribe(topic)
        for where in (http(filled), lookup(lookupds), [*http(filled), *lookup(lookupds)]):
            output = check("--depth-warn", "59", "--depth-crit", "60", *where)
            assert output.state == "WARNING"
            numbers = [output.data[name] for name in (f"{topic}/c:depth", f"{topic}/c:clients")]
            assert [*numbers, output.data["nsqds"]] == [60, 1, 3]
        assert check("--depth-warn", "60", "--clients-min", "1", *where).state == "OK"
        critical = check("--depth-crit", "59", "--clients-min", "2", *where)
    assert [line.partition(":")[0] for line in critical.more] == ["CRITICAL", "CRITICAL"]


def test_a_metric_is_what_its_nsqd_says_of_the_topic_and_channel_asked_for(
    nsqtools_cli: Cli, filled: list[Nsqd], lookupds: list[Nsqlookupd], topic: str, tmp_path: Path
) -> None:
    filled[0].create(topic, "d")
    filled[0].create("other", "c")
    where = (*http(filled[:1]), *lookup(lookupds), "--topic", topic, "--channel", "c")
    exporter = Serving(nsqtools_cli, tmp_path, "stats", "--serve", ":0", *where)
    found = exporter.all()
    depths = {key[1:]: value for key, value in found.items() if key[0] == "nsq_channel_depth"}
    assert depths == {
        ("c", str(nsqd.http), topic): 10 * number for number, nsqd in enumerate(filled, 1)
    }
    ups = {key[1] for key in found if key[0] in ("nsq_up", "nsq_nsqlookupd_up")}
    assert ups == {str(each.http) for each in (*filled, *lookupds)}
    assert exporter.end() == 0


@pytest.mark.nsqd_only("the sandbox keeps no latencies")
def test_who_consumes_is_told_and_the_latency_where_nsqd_keeps_it(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd(
        "-e2e-processing-latency-percentile=0.99,0.5", "-e2e-processing-latency-window-time=10m"
    )
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"])
    with Raw(nsqd.tcp) as raw:
        raw.identify(client_id="raw", hostname="a host", user_agent="agent of ours")
        raw.subscribe(topic, "c", ready=300)
        raw.send(f"FIN {raw.message().id}")
        raw.settle()
        expected = nsqd.channel(topic, "c")["e2e_processing_latency"]["percentiles"]
        said = ask(nsqtools_cli, topic, *http([nsqd]), "--clients")
        once = ("stats", "--once", "--topic", topic, *http([nsqd]))
        cells = nsqtools_cli(*once, "--clients").stdout.decode().rstrip("\n").split("\t")
        assert (cells[:2], cells[13], len(cells)) == ([topic, "c"], "a host", 17)
        for more, title in (((), "in/s"), (("--channel", "c"), "ingress")):
            with Terminal(nsqtools_cli, *once, *more) as terminal:
                terminal.until(title)
    seconds = {each["quantile"]: each["value"] / 1e9 for each in expected}
    assert said["latency"] == {"p99": seconds[0.99], "p50": seconds[0.5]}
    (consumer,) = said["consumers"]
    names = ("hostname", "user_agent", "tls", "compression", "ready_count", "finished")
    assert [consumer[name] for name in names] == ["a host", "agent of ours", False, None, 300, 1]


def test_it_is_nsq_stat_beside_the_same_messages(
    nsqtools_cli: Cli, filled: list[Nsqd], nsq: Nsq, topic: str
) -> None:
    """The same columns at the same places, and the same numbers in them."""
    program = nsq.path("nsq_stat", "that stats is like nsq_stat")
    flags = ["-topic", topic, "--channel=c", "-interval=50ms", "-count=30"]
    flags += [f"-nsqd-http-address={nsqd.http}" for nsqd in filled]
    theirs = subprocess.run([program, *flags], capture_output=True, check=True).stdout.decode()
    ours = nsqtools_cli("stats", *flags).stdout.decode()
    assert "60" in ours.splitlines()[-1].split()
    assert ours == theirs


TOPICS, CHANNELS, MOST = 500, 4, 80 << 10  # KiB


def test_a_report_of_a_large_cluster_takes_little_memory(nsqtools_cli: Cli) -> None:
    counts = ("depth", "backend_depth", "message_count", "in_flight_count", "requeue_count")
    zero: dict[str, object] = {**dict.fromkeys(counts, 0), "paused": False}
    channels = [{"channel_name": f"channel-{n}", "clients": [], **zero} for n in range(CHANNELS)]
    topics = [{"topic_name": f"topic-{n}", "channels": channels, **zero} for n in range(TOPICS)]
    version = {"version": "1.3.0"}
    stats = {**version, "health": "OK", "start_time": 5, "topics": topics}
    where = []
    with ExitStack() as stack:
        for number in range(3):
            info = {**version, "broadcast_address": f"host{number}", "tcp_port": 1, "http_port": 2}
            address = stack.enter_context(answering({"/stats": stats, "/info": info}))
            where += ["--nsqd-http-address", str(address)]
        rows = TOPICS * (CHANNELS + 1)
        for form, lines in (((), rows + 3), (("--csv",), rows + 1), (("--json",), 1)):
            done = nsqtools_cli.measured("stats", "--once", *form, *where)
            assert (done.code, done.stdout.count(b"\n")) == (0, lines), done.stderr
            assert done.peak < MOST
