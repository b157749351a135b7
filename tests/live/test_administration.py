"""``topic``, ``channel``, ``node`` and ``lookup`` as processes on a cluster."""

import json
import signal
import subprocess
from dataclasses import dataclass, replace

import pytest

from nsqtools.cli import cli, exits
from nsqtools.engine.changes import Stages, Step
from nsqtools.errors import HTTPError
from tests.support.eventually import eventually
from tests.support.process import Cli, Result, Terminal
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd, fill, http, lookup, registered


@dataclass(slots=True)
class Cluster:
    """Three nsqds that two nsqlookupds know; the first two have the topic, with a channel ``c``."""

    cli: Cli
    topic: str
    lookupds: list[Nsqlookupd]
    nsqds: list[Nsqd]

    def run(self, *words: str, code: int = 0) -> Result:
        ended = self.cli(*words, *lookup(self.lookupds))
        assert ended.code == code, (ended.stdout, ended.stderr)
        return ended

    def results(self, *words: str) -> dict[str, str]:
        """What each server did, by its address."""
        told = json.loads(self.run(*words, "--json").stdout)
        return {each["address"]: each["result"] for each in told["servers"]}

    def holds(self) -> list[dict[str, set[str]]]:
        """The channels of each topic that each server has, nsqlookupds first."""
        found = []
        for each in self.lookupds:
            topics = json.loads(each.request("GET", "/topics"))["topics"]
            answers = {name: each.request("GET", "/channels", topic=name) for name in topics}
            found.append({name: set(json.loads(answers[name])["channels"]) for name in topics})
        for nsqd in self.nsqds:
            held = {topic["topic_name"]: topic["channels"] for topic in nsqd.stats()["topics"]}
            found.append({name: {each["channel_name"] for each in held[name]} for name in held})
        return found


@pytest.fixture
def cluster(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd], topic: str
) -> Cluster:
    found = Cluster(nsqtools_cli, topic, lookupds, [make_nsqd(lookupds=lookupds) for _ in range(3)])
    for each in found.nsqds[:2]:
        fill(each, topic)
    found.nsqds[2].create("other")
    eventually(lambda: found.holds()[:2] == [{topic: {"c"}, "other": set()}] * 2)
    registered(topic, lookupds, 2)
    return found


def test_a_deletion_tells_what_is_lost_and_asks_and_reaches_everybody(cluster: Cluster) -> None:
    topic, has_it = cluster.topic, [*cluster.lookupds, *cluster.nsqds[:2]]
    before = cluster.holds()
    tried = cluster.run("topic", "delete", topic, "--dry-run")
    requests = [line.split("\t")[2] for line in tried.stdout.decode().splitlines()]
    assert set(requests) == {f"POST http://{a.http}/topic/delete?topic={topic}" for a in has_it}
    assert "6 messages on 2 nsqds" in tried.stderr

    def answer(typed: str, *words: str) -> int:
        with Terminal(cluster.cli, *words, *lookup(cluster.lookupds)) as terminal:
            assert "6 messages on 2 nsqds" in terminal.until(f"Type yes or {words[-1]} to ")
            terminal.type(typed)
            return terminal.end()

    assert [answer(typed, "topic", "delete", topic) for typed in ("y", "")] == [1, 1]
    assert cluster.holds() == before
    assert answer("c", "channel", "delete", topic, "c") == 0
    bare = {topic: set[str]()}
    assert cluster.holds() == [{**bare, "other": set()}] * 2 + [bare] * 2 + [{"other": set()}]
    words = ("topic", "delete", topic, "--yes")
    assert cluster.results(*words) == {str(each.http): "done" for each in has_it}
    assert cluster.holds() == [{"other": set()}] * 2 + [{}] * 2 + [{"other": set()}]
    assert cluster.run(*words, code=1).stdout == b""


def test_lookup_unites_and_a_tombstone_hides_one_nsqd_from_one_topic_and_can_delete_it_there(
    cluster: Cluster,
) -> None:
    topic, (hidden, other, third) = cluster.topic, cluster.nsqds
    hidden.create("second")
    third.create(topic, "d")
    registered("second", cluster.lookupds)
    registered(topic, cluster.lookupds, 3)
    assert cluster.run("lookup", "channels", topic).stdout == b"c\nd\n"
    words = ("node", "tombstone", topic, str(hidden.http))
    assert cluster.results(*words) == {str(each.http): "done" for each in cluster.lookupds}
    for lookupd in cluster.lookupds:
        assert lookupd.lookup(topic) == {other.tcp, third.tcp}
        assert lookupd.lookup("second") == {hidden.tcp}
    shown = [line.split(b"\t") for line in cluster.run("lookup", "nodes").stdout.splitlines()]
    marked = {node[1].decode() for node in shown if b"(tombstoned)" in node[-1]}
    assert (len(shown), marked) == (3, {str(hidden.http)})
    nodes = json.loads(cluster.run("lookup", "nodes", "--json").stdout)["producers"]
    assert {node["tcp_port"]: any(node["tombstones"]) for node in nodes} == {
        each.tcp.port: each is hidden for each in cluster.nsqds
    }
    assert hidden.topic(topic)["channels"]
    told = cluster.results(*words, "--delete", "--yes")
    assert told == {str(each.http): "done" for each in (*cluster.lookupds, hidden)}
    assert [set(each) for each in cluster.holds()[2:4]] == [{"second"}, {topic}]


def test_a_drain_names_what_never_drains_and_keeps_it(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    for topic in ("left", "shut"):
        fill(nsqd, topic)
    nsqd.create("bare")
    nsqd.publish("bare", [b"x"])
    nsqd.pause("shut", "c")
    for topic in ("left", "shut", "bare"):
        registered(topic, [nsqlookupd])
    words = ("node", "drain", str(nsqd.http), "--timeout", "1s", "--json", "--evict")
    ended = nsqtools_cli(*words, *lookup([nsqlookupd]))
    said = json.loads(ended.stdout)
    assert (ended.code, said["drained"]) == (4, False)
    assert "no nsqlookupd lists" not in ended.stderr
    named = {(each["topic"], each["channel"]) for each in said["left"] if each["note"]}
    assert named == {("bare", "-"), ("left", "c"), ("shut", "c")}
    assert [nsqd.channel(topic, "c")["depth"] for topic in ("left", "shut")] == [3, 3]
    assert nsqd.topic("bare")["depth"] == 1
    assert not nsqlookupd.lookup("left")
    assert nsqtools_cli(*words).code == 2
    stranger = nsqtools_cli(
        "node", "drain", str(make_nsqd().http), "--evict", *lookup([nsqlookupd])
    )
    assert (stranger.code, "no nsqlookupd lists" in stranger.stderr) == (0, True)
    nsqlookupd.stop()
    assert nsqtools_cli(*words, *lookup([nsqlookupd])).code == 3
    drain = nsqtools_cli.start(*words[:3], stderr=subprocess.PIPE)
    assert drain.stderr
    assert b"so it does not drain" in drain.stderr.readline()
    drain.send_signal(signal.SIGTERM)
    assert drain.wait(60) == 4
    nsqd.stop()
    assert nsqtools_cli(*words[:5]).code == 3


@pytest.mark.parametrize(("status", "code"), [(500, 1), (0, 3)])
def test_a_change_that_no_server_makes_is_a_failure_or_nobody_can_be_reached(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, status: int, code: int
) -> None:
    async def fail(_: object, stages: Stages) -> list[Step]:
        error = HTTPError("went away", nsqd.http, status=status)
        return [replace(step, error=error) for steps in stages for step in steps]

    nsqd.create("t")
    monkeypatch.setattr("nsqtools.cli.commands.admin.change.carry_out", fail)
    assert exits.run(cli, ["topic", "pause", "t", *http([nsqd])]) == code
