"""``topic``, ``channel`` and ``node`` as processes on a cluster."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.eventually import eventually
from tests.support.reporting import fill, http, lookup, registered
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd


@dataclass(slots=True)
class Cluster:
    """Three nsqds that two nsqlookupds know; two of them have the topic, with a channel ``c``."""

    cli: Cli
    topic: str
    lookupds: list[Nsqlookupd]
    nsqds: list[Nsqd]

    @property
    def having(self) -> list[Nsqd]:
        return self.nsqds[:2]

    def run(self, *words: str, code: int = 0) -> Result:
        ended = self.cli(*words, *lookup(self.lookupds))
        assert ended.code == code, (ended.stdout, ended.stderr)
        return ended

    def results(self, *words: str, code: int = 0) -> dict[str, str]:
        """What each server did, by its address."""
        told = json.loads(self.run(*words, "--json", code=code).stdout)
        return {each["address"]: each["result"] for each in told["servers"]}

    def all(self, result: str, *, lookupds: bool = False) -> dict[str, str]:
        """What ``results`` gives if all nsqds that have the topic did the same."""
        servers = [*(self.lookupds if lookupds else []), *self.having]
        return dict.fromkeys((str(each.http) for each in servers), result)

    def topics(self) -> list[set[str]]:
        """The topics that each server has, nsqlookupds first."""
        known = [json.loads(each.request("GET", "/topics"))["topics"] for each in self.lookupds]
        held = [[t["topic_name"] for t in each.stats()["topics"]] for each in self.nsqds]
        return [set(names) for names in (*known, *held)]

    def channels(self) -> list[set[str]]:
        """The channels of the topic that each server has, of those that have the topic."""
        known = [
            json.loads(each.request("GET", "/channels", topic=self.topic))["channels"]
            for each in self.lookupds
        ]
        held = [
            [channel["channel_name"] for channel in each.topic(self.topic)["channels"]]
            for each in self.having
        ]
        return [set(names) for names in (*known, *held)]

    def state(self) -> list[Any]:
        """Depth and pause of topic and channel on each nsqd that has them."""
        entries = [(each.topic(self.topic), each.channel(self.topic, "c")) for each in self.having]
        return [[(each["depth"], each["paused"]) for each in both] for both in entries]


@pytest.fixture
def cluster(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd], topic: str
) -> Cluster:
    nsqds = [make_nsqd(lookupds=lookupds) for _ in range(3)]
    for each in nsqds[:2]:
        each.create(topic, "c")
    nsqds[2].create("other")
    found = Cluster(nsqtools_cli, topic, lookupds, nsqds)
    eventually(lambda: all({topic, "other"} == names for names in found.topics()[:2]))
    eventually(lambda: all(each == {"c"} for each in found.channels()))
    registered(topic, lookupds, 2)
    return found


def test_what_is_deleted_is_gone_everywhere_and_stays_away(cluster: Cluster) -> None:
    channel = ("channel", "delete", cluster.topic, "c", "--yes")
    assert cluster.results(*channel) == cluster.all("done", lookupds=True)
    assert cluster.channels() == [set()] * 4
    topic = ("topic", "delete", cluster.topic, "--yes")
    assert cluster.results(*topic) == cluster.all("done", lookupds=True)
    assert cluster.topics() == [{"other"}, {"other"}, set(), set(), {"other"}]
    for words in (channel, topic):
        assert cluster.run(*words, code=1).stdout == b""


def test_a_dry_run_tells_the_requests_and_the_loss_and_changes_nothing(cluster: Cluster) -> None:
    topic, node = cluster.topic, str(cluster.nsqds[0].http)
    for nsqd in cluster.having:
        fill(nsqd, topic)

    def state() -> list[object]:
        found = [each.lookup(topic) for each in cluster.lookupds]
        return [cluster.topics(), cluster.channels(), cluster.state(), found]

    before = state()
    for lost, *words in (
        (["6"], "topic", "delete", topic),
        (["0"], "topic", "empty", topic),
        ([], "topic", "pause", topic),
        ([], "topic", "create", "fresh"),
        ([], "channel", "create", topic, "fresh"),
        (["6"], "channel", "delete", topic, "c"),
        (["6"], "channel", "empty", topic, "c"),
        ([], "channel", "pause", topic, "c"),
        (["3"], "node", "tombstone", topic, node, "--delete"),
    ):
        kind, verb, *_ = words
        ended = cluster.run(*words, "--dry-run")
        path = "topic/tombstone" if kind == "node" else f"{kind}/{verb}"
        server, address, request, _ = ended.stdout.decode().splitlines()[0].split("\t")
        assert request.startswith(f"POST http://{address}/{path}?topic=")
        assert server == ("nsqd" if verb in ("empty", "pause") else "nsqlookupd")
        assert re.findall(r"(\d+) messages? on ", ended.stderr) == lost
    assert state() == before


def test_who_is_dead_is_named_and_the_others_do_what_was_asked(cluster: Cluster) -> None:
    """Also an nsqlookupd that is only asked: it may list nsqds that others do not."""
    mute, dead = cluster.lookupds[1], cluster.nsqds[1]
    mute.kill()
    paused = cluster.run("-q", "topic", "pause", cluster.topic, code=4)
    assert paused.stderr.count(str(mute.http)) == 1
    assert cluster.state() == [[(0, True), (0, False)]] * 2
    told = cluster.results("channel", "create", cluster.topic, "more", code=4)
    assert told == cluster.all("done", lookupds=True) | {str(mute.http): "failed"}
    dead.kill()
    words = ("topic", "unpause", cluster.topic, *http([dead]))
    assert cluster.results(*words, code=4) == cluster.all("done") | {str(dead.http): "failed"}
    assert not cluster.nsqds[0].topic(cluster.topic)["paused"]
    assert str(dead.http) in cluster.run(*words, code=4).stderr
    for each in (cluster.lookupds[0], cluster.nsqds[0], cluster.nsqds[2]):
        each.kill()
    nobody = cluster.run("topic", "pause", cluster.topic, code=3)
    assert str(cluster.lookupds[0].http) in nobody.stderr
    assert nobody.stderr.count("\n") == 1


def test_on_a_terminal_the_loss_is_shown_and_confirmed(cluster: Cluster) -> None:
    for nsqd in cluster.having:
        fill(nsqd, cluster.topic, count=2)

    def answer(typed: str, kind: str, *names: str) -> int:
        words = (kind, "delete", *names, *lookup(cluster.lookupds))
        with Terminal(cluster.cli, *words) as terminal:
            shown = terminal.until(f"Type yes or {names[-1]} to ")
            assert "4 messages on 2 nsqds" in shown or not cluster.channels()[0]
            if typed == "SIGINT":
                terminal.interrupt()
            else:
                terminal.type(typed)
            return terminal.end()

    topic = cluster.topic
    assert [answer(typed, "topic", topic) for typed in ("y", "", "SIGINT")] == [1, 1, 130]
    assert cluster.channels() == [{"c"}] * 4
    assert answer("yes", "channel", topic, "c") == 0
    assert cluster.channels() == [set()] * 4
    assert answer(topic, "topic", topic) == 0
    assert cluster.topics()[2:4] == [set()] * 2


def test_a_tombstone_hides_one_nsqd_from_one_topic_and_can_delete_it_there(
    cluster: Cluster,
) -> None:
    hidden, other = cluster.having
    hidden.create("second")
    registered("second", cluster.lookupds, 1)
    words = ("node", "tombstone", cluster.topic, str(hidden.http))
    assert cluster.results(*words) == {str(each.http): "done" for each in cluster.lookupds}
    for lookupd in cluster.lookupds:
        assert lookupd.lookup(cluster.topic) == {other.tcp}
        assert lookupd.lookup("second") == {hidden.tcp}
    assert hidden.topic(cluster.topic)["channels"]
    told = cluster.results(*words, "--delete", "--yes")
    assert told == {str(each.http): "done" for each in (*cluster.lookupds, hidden)}
    assert cluster.topics()[2:4] == [{"second"}, {cluster.topic}]
