"""``topic``, ``channel`` and ``node`` as processes on a cluster."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd


@dataclass(slots=True)
class Cluster:
    """Three nsqds that two nsqlookupds know; two of them have the topic, with a channel ``c``."""

    cli: Cli
    topic: str
    lookupds: list[Nsqlookupd]
    nsqds: list[Nsqd]

    @property
    def at(self) -> list[str]:
        return [
            word for each in self.lookupds for word in ("--lookupd-http-address", str(each.http))
        ]

    def run(self, *words: str, code: int = 0) -> Result:
        ended = self.cli(*words, *self.at)
        assert ended.code == code, (ended.stdout, ended.stderr)
        return ended

    def results(self, *words: str, code: int = 0) -> dict[tuple[str, str], str]:
        """What each server did, by its program and address."""
        lines = self.run(*words, code=code).stdout.decode().splitlines()
        rows = [line.split("\t") for line in lines]
        return {(server, address): result for server, address, result in rows}

    def done(self, lookupds: str = "", nsqds: str = "") -> dict[tuple[str, str], str]:
        """What ``results`` gives if all did the same; an empty text is for not being asked."""
        of_lookupds = {("nsqlookupd", str(each.http)): lookupds for each in self.lookupds}
        of_nsqds = {("nsqd", str(each.http)): nsqds for each in self.nsqds[:2]}
        return {name: text for name, text in (of_lookupds | of_nsqds).items() if text}

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
            [c["channel_name"] for c in each.topic(self.topic)["channels"]]
            for each in self.nsqds[:2]
        ]
        return [set(names) for names in (*known, *held)]


@pytest.fixture
def cluster(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> Cluster:
    lookupds = [make_nsqlookupd(), make_nsqlookupd()]
    nsqds = [make_nsqd(lookupds=lookupds) for _ in range(3)]
    for each in nsqds[:2]:
        each.create(topic, "c")
    nsqds[2].create("other")
    found = Cluster(nsqtools_cli, topic, lookupds, nsqds)
    eventually(lambda: all({topic, "other"} == names for names in found.topics()[:2]))
    eventually(lambda: all(each == {"c"} for each in found.channels()))
    eventually(lambda: all(len(each.lookup(topic)) == 2 for each in lookupds))
    return found


def test_pausing_is_done_on_every_nsqd_that_has_it_and_again_says_so(cluster: Cluster) -> None:
    for words in (("topic", "pause", cluster.topic), ("channel", "pause", cluster.topic, "c")):
        assert cluster.results(*words) == cluster.done(nsqds="done")
        assert cluster.results(*words) == cluster.done(nsqds="is paused already")
    assert [
        (nsqd.topic(cluster.topic)["paused"], nsqd.channel(cluster.topic, "c")["paused"])
        for nsqd in cluster.nsqds[:2]
    ] == [(True, True)] * 2
    for words in (("topic", "unpause", cluster.topic), ("channel", "unpause", cluster.topic, "c")):
        assert cluster.results(*words) == cluster.done(nsqds="done")
        assert cluster.results(*words) == cluster.done(nsqds="is not paused")
    assert not any(
        nsqd.topic(cluster.topic)["paused"] or nsqd.channel(cluster.topic, "c")["paused"]
        for nsqd in cluster.nsqds[:2]
    )


def test_a_topic_is_deleted_everywhere_and_stays_away(cluster: Cluster) -> None:
    assert cluster.results("topic", "delete", cluster.topic, "--yes") == cluster.done(
        lookupds="done", nsqds="done"
    )
    assert cluster.topics() == [{"other"}, {"other"}, set(), set(), {"other"}]
    again = cluster.run("topic", "delete", cluster.topic, "--yes", code=1)
    assert (again.stdout, again.stderr) == (b"", f"nsqtools: no server has topic {cluster.topic}\n")


def test_a_channel_is_deleted_everywhere(cluster: Cluster) -> None:
    assert cluster.results("channel", "delete", cluster.topic, "c", "--yes") == cluster.done(
        lookupds="done", nsqds="done"
    )
    assert cluster.channels() == [set()] * 4


def test_emptying_a_topic_keeps_what_its_channels_have(cluster: Cluster) -> None:
    for nsqd in cluster.nsqds[:2]:
        nsqd.publish(cluster.topic, [b"x"])
        eventually(lambda nsqd=nsqd: nsqd.channel(cluster.topic, "c")["depth"] == 1)  # type: ignore[misc]
        nsqd.pause(cluster.topic)
        nsqd.publish(cluster.topic, [b"y"])

    def depths() -> list[tuple[int, int]]:
        return [
            (nsqd.topic(cluster.topic)["depth"], nsqd.channel(cluster.topic, "c")["depth"])
            for nsqd in cluster.nsqds[:2]
        ]

    assert depths() == [(1, 1)] * 2
    assert cluster.results("topic", "empty", cluster.topic, "-y") == cluster.done(nsqds="done")
    assert depths() == [(0, 1)] * 2
    words = ("channel", "empty", cluster.topic, "c", "--yes")
    assert cluster.results(*words) == cluster.done(nsqds="done")
    assert depths() == [(0, 0)] * 2


def test_a_topic_is_made_on_nsqlookupds_and_on_the_nsqds_that_are_given(cluster: Cluster) -> None:
    given = ("--nsqd-http-address", str(cluster.nsqds[2].http))
    expected = {("nsqlookupd", str(each.http)): "done" for each in cluster.lookupds}
    expected[("nsqd", str(cluster.nsqds[2].http))] = "done"
    assert cluster.results("topic", "create", "fresh", *given) == expected
    assert ["fresh" in names for names in cluster.topics()] == [True, True, False, False, True]
    again = cluster.results("topic", "create", "fresh", *given)
    assert again == dict.fromkeys(expected, "is there already")


def test_a_channel_is_made_wherever_the_topic_is(cluster: Cluster) -> None:
    words = ("channel", "create", cluster.topic, "more")
    assert cluster.results(*words) == cluster.done(lookupds="done", nsqds="done")
    assert cluster.channels() == [{"c", "more"}] * 4
    already = "is there already"
    assert cluster.results(*words) == cluster.done(lookupds=already, nsqds=already)


def test_a_channel_is_not_made_of_a_topic_that_nobody_has(cluster: Cluster) -> None:
    typo = f"{cluster.topic}x"
    ended = cluster.run("channel", "create", typo, "more", code=1)
    assert ended.stderr == (
        f"nsqtools: no server has topic {typo}; did you mean {cluster.topic!r}?\n"
    )
    assert all(typo not in names for names in cluster.topics())


def test_a_channel_that_nobody_has_is_told_with_the_nearest_name(cluster: Cluster) -> None:
    cluster.run("channel", "create", cluster.topic, "archive")
    ended = cluster.run("channel", "pause", cluster.topic, "archve", code=1)
    assert ended.stderr == (
        f"nsqtools: no server has channel archve of topic {cluster.topic}; "
        "did you mean 'archive'?\n"
    )


def test_a_topic_that_only_nsqlookupd_knows_cannot_be_paused(cluster: Cluster) -> None:
    cluster.run("topic", "create", "empty")
    ended = cluster.run("topic", "pause", "empty", code=1)
    assert ended.stderr == "nsqtools: no nsqd has topic empty; nsqlookupd alone knows of it\n"


def test_a_dry_run_says_what_would_be_asked_and_changes_nothing(cluster: Cluster) -> None:
    topic, nsqds = cluster.topic, cluster.nsqds[:2]
    fill(cluster)

    def state() -> list[object]:
        of_topics = [(t["depth"], t["paused"]) for t in (nsqd.topic(topic) for nsqd in nsqds)]
        of_channels = [
            (c["depth"], c["paused"]) for c in (nsqd.channel(topic, "c") for nsqd in nsqds)
        ]
        lookups = [each.lookup(topic) for each in cluster.lookupds]
        return [cluster.topics(), cluster.channels(), of_topics, of_channels, lookups]

    before = state()
    for words in (
        ("topic", "delete", topic),
        ("topic", "empty", topic),
        ("topic", "pause", topic),
        ("topic", "create", "fresh"),
        ("channel", "create", topic, "fresh"),
        ("channel", "delete", topic, "c"),
        ("channel", "empty", topic, "c"),
        ("channel", "pause", topic, "c"),
        ("node", "tombstone", topic, str(nsqds[0].http), "--delete"),
    ):
        ended = cluster.run(*words, "--dry-run")
        kind, verb, *_ = words
        path = "topic/tombstone" if kind == "node" else f"{kind}/{verb}"
        server, address, request, _ = ended.stdout.decode().splitlines()[0].split("\t")
        assert request.startswith(f"POST http://{address}/{path}?topic=")
        assert server == ("nsqd" if verb in ("empty", "pause") else "nsqlookupd")
        assert ended.stderr == ""
    assert state() == before


def test_a_partial_failure_names_who_failed(cluster: Cluster) -> None:
    dead = cluster.nsqds[1]
    dead.kill()
    given = ("--nsqd-http-address", str(dead.http))
    ended = cluster.run("topic", "pause", cluster.topic, *given, code=4)
    rows = sorted(line.split("\t") for line in ended.stdout.decode().splitlines())
    assert rows == sorted(
        [
            ["nsqd", str(cluster.nsqds[0].http), "done"],
            ["nsqd", str(dead.http), "failed: connection refused"],
        ]
    )
    assert ended.stderr == f"nsqtools: nsqd {dead.http}: connection refused\n"
    assert cluster.nsqds[0].topic(cluster.topic)["paused"]


def test_a_dead_nsqlookupd_fails_what_it_was_to_do(cluster: Cluster) -> None:
    dead = cluster.lookupds[1]
    dead.kill()
    ended = cluster.run("channel", "delete", cluster.topic, "c", "--yes", code=4)
    assert ended.stderr == f"nsqtools: nsqlookupd {dead.http}: connection refused\n"
    assert [
        [each["channel_name"] for each in nsqd.topic(cluster.topic)["channels"]]
        for nsqd in cluster.nsqds[:2]
    ] == [[], []]


def test_a_dead_nsqlookupd_that_is_not_needed_is_a_warning(cluster: Cluster) -> None:
    dead = cluster.lookupds[1]
    dead.kill()
    ended = cluster.run("topic", "pause", cluster.topic)
    assert ended.stderr.count(str(dead.http)) == 1
    assert all(nsqd.topic(cluster.topic)["paused"] for nsqd in cluster.nsqds[:2])


def test_where_no_nsqlookupd_answers_what_was_given_is_done_and_that_is_only_a_part(
    cluster: Cluster,
) -> None:
    given = ("--nsqd-http-address", str(cluster.nsqds[0].http))
    for each in cluster.lookupds:
        each.kill()
    planned = cluster.run("topic", "pause", cluster.topic, *given, "--dry-run")
    for verb, options in (("pause", ()), ("unpause", ()), ("empty", ("--yes",))):
        for target in (("topic", verb, cluster.topic), ("channel", verb, cluster.topic, "c")):
            ended = cluster.run(*target, *given, *options, code=4)
            rows = [line.split("\t") for line in ended.stdout.decode().splitlines()]
            assert rows == [["nsqd", str(cluster.nsqds[0].http), "done"]]
            for each in cluster.lookupds:
                assert ended.stderr.count(str(each.http)) == 1
            assert "no nsqlookupd answers: nsqds that were not given are not asked" in ended.stderr
    assert "no nsqlookupd answers" in planned.stderr


@pytest.mark.nsqd_only("a sandbox has no broadcast address of its own")
@pytest.mark.parametrize("host", ["256.1.1.1", "a,b"])
def test_one_badly_set_up_nsqd_fails_alone(
    cluster: Cluster, make_nsqd: MakeNsqd, host: str
) -> None:
    badly = make_nsqd(f"-broadcast-address={host}", lookupds=cluster.lookupds)
    badly.create(cluster.topic, "c")
    name = f"{host}:{badly.http.port}"
    eventually(lambda: all(len(each.lookup(cluster.topic)) == 3 for each in cluster.lookupds))
    told = cluster.results("topic", "pause", cluster.topic, code=4)
    assert told.pop(("nsqd", name)).startswith("failed: cannot ")
    assert told == cluster.done(nsqds="done")
    report = cluster.run("stats", "--once", "--csv")
    assert [line for line in report.stderr.splitlines() if name in line]
    check = cluster.run("stats", "--check", code=1).stdout.decode()
    assert check.startswith(f"NSQ WARNING - nsqd {name}: cannot ")


def test_nobody_that_answers_is_unreachable(cluster: Cluster) -> None:
    for each in (*cluster.lookupds, *cluster.nsqds):
        each.kill()
    ended = cluster.run("topic", "pause", cluster.topic, code=3)
    assert str(cluster.lookupds[0].http) in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_json_tells_what_each_server_did(cluster: Cluster) -> None:
    dead = cluster.lookupds[1]
    dead.kill()
    told = json.loads(cluster.run("topic", "delete", cluster.topic, "-y", "--json", code=4).stdout)
    servers = told.pop("servers")
    assert told == {"kind": "topic", "action": "delete", "topic": cluster.topic, "dry_run": False}
    by_address = {each["address"]: each for each in servers}
    assert by_address[str(dead.http)]["result"] == "failed"
    assert "refused" in by_address[str(dead.http)]["error"]
    alive = [str(each.http) for each in (cluster.lookupds[0], *cluster.nsqds[:2])]
    assert [by_address[each]["result"] for each in alive] == ["done"] * 3


def test_without_a_terminal_nothing_is_lost_unless_it_was_confirmed(cluster: Cluster) -> None:
    for words in (
        ("topic", "delete", cluster.topic),
        ("topic", "empty", cluster.topic),
        ("channel", "delete", cluster.topic, "c"),
        ("channel", "empty", cluster.topic, "c"),
        ("node", "tombstone", cluster.topic, str(cluster.nsqds[0].http), "--delete"),
    ):
        ended = cluster.run(*words, code=2)
        name = " ".join(words[:2])
        assert (ended.stdout, ended.stderr) == (
            b"",
            f"nsqtools: {name} loses messages: give --yes, as there is no terminal to ask on\n",
        )
    assert cluster.channels() == [{"c"}] * 4


@pytest.mark.parametrize("answer", ["yes", "NAME"])
def test_on_a_terminal_the_loss_is_shown_and_confirmed(cluster: Cluster, answer: str) -> None:
    fill(cluster)
    with Terminal(cluster.cli, "topic", "delete", cluster.topic, *cluster.at) as terminal:
        shown = terminal.until(f"Type yes or {cluster.topic} to delete it: ")
        assert (
            f"topic {cluster.topic}: 4 messages on 2 nsqds would be lost "
            "(depth 4, in flight 0, deferred 0), in 1 channel" in shown
        )
        assert cluster.channels() == [{"c"}] * 4
        terminal.type(answer.replace("NAME", cluster.topic))
        assert terminal.end() == 0
    assert cluster.topics()[2:4] == [set(), set()]


def test_another_answer_changes_nothing(cluster: Cluster) -> None:
    fill(cluster)
    for answer in ("", "no", "y"):
        with Terminal(cluster.cli, "channel", "empty", cluster.topic, "c", *cluster.at) as terminal:
            terminal.until("Type yes or c to empty it: ")
            terminal.type(answer)
            assert terminal.end() == 1
        assert "nothing was done" in terminal.output
    assert [nsqd.channel(cluster.topic, "c")["depth"] for nsqd in cluster.nsqds[:2]] == [2, 2]


def test_an_interrupt_at_the_question_changes_nothing(cluster: Cluster) -> None:
    with Terminal(cluster.cli, "topic", "delete", cluster.topic, *cluster.at) as terminal:
        terminal.until("Type yes or ")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
    assert cluster.channels() == [{"c"}] * 4


def test_a_tombstone_hides_one_nsqd_from_one_topic(cluster: Cluster) -> None:
    hidden, other = cluster.nsqds[:2]
    for each in (hidden, other):
        each.create("second")
    eventually(lambda: all(len(each.lookup("second")) == 2 for each in cluster.lookupds))
    told = cluster.results("node", "tombstone", cluster.topic, str(hidden.http))
    assert told == cluster.done(lookupds="done")
    for lookupd in cluster.lookupds:
        assert lookupd.lookup(cluster.topic) == {other.tcp}
        assert lookupd.lookup("second") == {hidden.tcp, other.tcp}
    assert hidden.topic(cluster.topic)["channels"]


def test_a_tombstone_can_delete_the_topic_there(cluster: Cluster) -> None:
    hidden, other = cluster.nsqds[:2]
    words = ("node", "tombstone", cluster.topic, str(hidden.tcp), "--delete", "--yes")
    expected = cluster.done(lookupds="done") | {("nsqd", str(hidden.http)): "done"}
    assert cluster.results(*words) == expected
    assert hidden.stats()["topics"] in ([], None)
    assert other.topic(cluster.topic)


def test_a_tombstone_needs_an_nsqd_that_is_listed_with_the_topic(cluster: Cluster) -> None:
    first = str(cluster.nsqds[0].http)
    for words, said in (
        ((cluster.topic, "127.0.0.1:1"), "nsqlookupd lists no nsqd '127.0.0.1:1'"),
        (("other", first), f"nsqlookupd does not list nsqd {first} with topic other"),
    ):
        assert said in cluster.run("node", "tombstone", *words, code=1).stderr


def fill(cluster: Cluster) -> None:
    for nsqd in cluster.nsqds[:2]:
        nsqd.publish(cluster.topic, [b"x", b"y"])
        eventually(lambda nsqd=nsqd: nsqd.channel(cluster.topic, "c")["depth"] == 2)  # type: ignore[misc]
