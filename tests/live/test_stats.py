"""``stats`` on real clusters: what it says is what nsqds say, added up."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import TYPE_CHECKING

from tests.support.eventually import eventually
from tests.support.raw import Raw
from tests.support.reporting import (
    Reports,
    ask,
    by_hand,
    channel_of,
    counted,
    http,
    listed,
    lookup,
    sums_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
    from tests.support.tls import Certificates


def test_numbers_of_a_cluster_are_those_of_its_nsqds_added_up(
    nsqtools_cli: Cli, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str
) -> None:
    for number, nsqd in enumerate(nsqds, 1):
        nsqd.create(topic, "c")
        nsqd.create(topic, f"only-here-{number}")
        nsqd.create(f"other.{number}")
        nsqd.publish(topic, [b"x"] * 10 * number)
        nsqd.publish(f"other.{number}", [b"x"] * number)
    nsqds[1].pause(topic, "c")
    nsqds[2].pause("other.3")
    with Raw(nsqds[0].tcp) as consumer:
        consumer.identify(client_id="me")
        consumer.subscribe(topic, "c", ready=4)
        held = [consumer.message() for _ in range(4)]
        consumer.send("RDY 0")
        consumer.send(f"REQ {held[0].id} 60000")
        consumer.send(f"FIN {held[1].id}")
        consumer.settle()
        eventually(lambda: listed(lookupds, nsqds, topic))
        said = ask(nsqtools_cli, *lookup(lookupds), *http(nsqds[:1]))
        expected = by_hand(nsqds)
        text = nsqtools_cli("stats", "--once", *lookup(lookupds)).stdout.decode()
    assert sums_of(said) == expected
    numbers = expected[topic, "c"]
    assert (numbers["messages"], numbers["in_flight"], numbers["deferred"]) == (60, 2, 1)
    assert (numbers["requeues"], numbers["clients"], numbers["paused"]) == (1, 1, True)
    assert {each["nsqd"] for each in channel_of(said, topic)["nsqds"]} == {
        str(nsqd.http) for nsqd in nsqds
    }
    assert {each["lookupd"] for each in said["lookupds"]} == {str(each.http) for each in lookupds}
    lines = [line.split() for line in text.splitlines()[2:] if line]
    found = {(words[14], words[15].strip("-")): words for words in lines}
    assert set(found) == set(expected)
    for key, words in found.items():
        depths = [expected[key][name] for name in ("depth", "backend_depth", "messages")]
        assert [int(words[n]) for n in (3, 5, 11)] == depths
        assert ("paused" in words) == expected[key]["paused"]


def test_one_topic_or_one_channel_is_told_of_alone(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    for name in (topic, f"{topic}.other"):
        nsqd.create(name, "c")
        nsqd.create(name, "d")

    def rows(*args: str) -> list[tuple[str, str]]:
        done = nsqtools_cli("stats", "--once", "--csv", *args, *http([nsqd]))
        cells = [line.split(",") for line in done.stdout.decode().splitlines()[1:]]
        return [(each[1].removeprefix(topic), each[2]) for each in cells]

    assert rows("--topic", topic) == [("", ""), ("", "c"), ("", "d")]
    assert rows("--channel", "d") == [("", "d"), (".other", "d")]
    assert rows("--topic", topic, "--channel", "c") == [("", "c")]


def test_an_nsqd_that_is_killed_marks_its_rows_and_begins_anew_when_it_is_back(
    nsqtools_cli: Cli, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str, tmp_path: Path
) -> None:
    for nsqd in nsqds:
        nsqd.create(topic, "c")
        nsqd.publish(topic, [b"x"] * 1000)
    eventually(lambda: listed(lookupds, nsqds, topic))
    reports = Reports(nsqtools_cli, tmp_path, *lookup(lookupds), "--topic", topic)
    whole = reports.until(lambda said: channel_of(said, topic)["messages"] == 3000)
    assert channel_of(whole, topic)["missing"] == 0
    nsqds[1].kill()
    partial = reports.until(lambda said: channel_of(said, topic)["missing"] == 1)
    assert channel_of(partial, topic)["messages"] == 2000
    assert sums_of(partial) == by_hand([nsqds[0], nsqds[2]])
    (error,) = [each["error"] for each in partial["nsqds"] if each["error"]]
    assert error.startswith(f"{nsqds[1].http}: ")
    reports.until(lambda said: len(reports.seen) > 3 and channel_of(said, topic)["missing"] == 1)
    nsqds[1].start()
    nsqds[1].create(topic, "c")
    nsqds[1].publish(topic, [b"x"] * 10)
    back = reports.until(
        lambda said: (
            not channel_of(said, topic)["missing"] and channel_of(said, topic)["messages"] == 2010
        )
    )
    assert sums_of(back) == by_hand(nsqds)
    rates = [
        channel_of(said, topic)[name]
        for said in reports.seen
        for name in ("ingress", "egress", "requeue_rate", "timeout_rate")
    ]
    assert all(rate is None or rate >= 0 for rate in rates)
    # What it had before it was killed did not come in now.
    assert counted(reports, lambda said: channel_of(said, topic)["ingress"]) < 100
    (warning,) = [line for line in reports.warnings() if line.startswith("nsqtools: warning: nsqd")]
    assert str(nsqds[1].http) in warning


def test_a_restarted_nsqd_is_no_negative_rate(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"] * 500)
    where = (*http([nsqd]), "--topic", topic, "--channel", "c")
    reports = Reports(nsqtools_cli, tmp_path, *where)
    reports.until(lambda said: channel_of(said, topic)["ingress"] == 0)
    nsqd.restart()
    nsqd.create(topic, "c")
    reports.until(lambda said: not channel_of(said, topic)["messages"])
    reports.until(lambda said: channel_of(said, topic)["ingress"] == 0)
    assert all(
        (each["ingress"] or 0) >= 0
        for said in reports.seen
        for above in said["topics"]
        for each in above["channels"]
    )


def test_pausing_is_seen_while_it_lasts(
    nsqtools_cli: Cli, nsqds: list[Nsqd], topic: str, tmp_path: Path
) -> None:
    for nsqd in nsqds:
        nsqd.create(topic, "c")
    reports = Reports(nsqtools_cli, tmp_path, *http(nsqds), "--topic", topic)
    reports.until(lambda said: not channel_of(said, topic)["paused"])
    nsqds[2].pause(topic, "c")
    said = reports.until(lambda said: bool(channel_of(said, topic)["paused"]))
    paused = {each["nsqd"]: each["paused"] for each in channel_of(said, topic)["nsqds"]}
    assert paused == {str(each.http): each is nsqds[2] for each in nsqds}
    nsqds[2].unpause(topic, "c")
    reports.until(lambda said: not channel_of(said, topic)["paused"])


def test_a_topic_that_is_deleted_between_reports_is_gone_from_the_next(
    nsqtools_cli: Cli, nsqds: list[Nsqd], topic: str, tmp_path: Path
) -> None:
    for nsqd in nsqds:
        nsqd.create(topic, "c")
        nsqd.publish(topic, [b"x"] * 5)
    reports = Reports(nsqtools_cli, tmp_path, *http(nsqds), "--topic", topic)
    reports.until(lambda said: bool(said["topics"]))
    for nsqd in nsqds:
        nsqd.delete(topic)
    reports.until(lambda said: not said["topics"])
    eventually(
        lambda: (
            f"nsqtools: warning: topic {topic}: no nsqd that answers has it" in (reports.warnings())
        )
    )
    nsqds[0].create(topic, "c")
    nsqds[0].publish(topic, [b"x"] * 3)
    said = reports.until(
        lambda said: bool(said["topics"]) and channel_of(said, topic)["messages"] == 3
    )
    assert channel_of(said, topic)["missing"] == 0
    assert len(reports.warnings()) == 1


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
    context = ssl.create_default_context(cafile=str(certificates.ca))
    for change in (f"topic/create?topic={topic}", f"channel/create?topic={topic}&channel=c"):
        url = f"https://{secure.https}/{change}"
        urllib.request.urlopen(url, data=b"", context=context).close()
    eventually(lambda: listed([nsqlookupd], [secure, plain], topic))
    refused = nsqtools_cli("stats", "--once", "--json", *lookup([nsqlookupd]))
    assert refused.code == 0
    hint = f"TLS_REQUIRED: give its HTTPS address instead, https://{secure.https}"
    assert refused.stderr.startswith(f"nsqtools: warning: nsqd {secure.http}: ")
    assert refused.stderr.rstrip().endswith(hint)
    errors = {each["nsqd"]: each["error"] for each in json.loads(refused.stdout)["nsqds"]}
    assert errors[str(plain.http)] is None
    assert "TLS_REQUIRED" in errors[str(secure.http)]
    https = (f"--nsqd-http-address=https://{secure.https}", "--tls-root-ca-file")
    said = ask(nsqtools_cli, *lookup([nsqlookupd]), *https, str(certificates.ca))
    assert {each["nsqd"] for each in channel_of(said, topic)["nsqds"]} == {
        str(secure.https),
        str(plain.http),
    }
