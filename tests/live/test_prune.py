"""``topic prune`` and ``channel prune`` as processes on clusters: only what nobody uses goes."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqtools.cli import cli, exits
from nsqtools.cli.commands.admin.prune import Pruning
from nsqtools.config.admin import PruneOptions
from nsqtools.engine.administration import Servers, carry_out, delete_idle
from nsqtools.engine.changes import Stages, Step, Target
from nsqtools.engine.doctor.snapshot import SavedSnapshot, load, save
from nsqtools.errors import HTTPError, NSQError
from nsqtools.policy.idleness import ClusterSample
from tests.support.eventually import eventually
from tests.support.process import Cli, Result, Terminal
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd, fill, http, lookup, registered

WATCH = ("--watch-for", "100ms")
NOW, DAY = 1.8e9, 86_400.0


@pytest.fixture
def nsqds(make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd) -> list[Nsqd]:
    return [make_nsqd(lookupds=[nsqlookupd]), make_nsqd(lookupds=[nsqlookupd])]


@pytest.fixture
def servers(nsqds: list[Nsqd], nsqlookupd: Nsqlookupd) -> list[str]:
    """Options for the cluster of both nsqds."""
    return lookup([nsqlookupd])


@pytest.fixture
def prune(nsqds: list[Nsqd], nsqlookupd: Nsqlookupd, servers: list[str]) -> Callable[..., int]:
    """Creates topics, and prunes all in this process; returns the exit code."""

    def run(*topics: str, options: tuple[str, ...] = ()) -> int:
        create(nsqlookupd, nsqds, *topics)
        return exits.run(cli, ["topic", "prune", *WATCH, "--yes", *options, *servers])

    return run


def create(nsqlookupd: Nsqlookupd, nsqds: list[Nsqd], *topics: str) -> None:
    """Topics on all these nsqds, each with a channel ``c``."""
    for topic in topics:
        for nsqd in nsqds:
            nsqd.create(topic, "c")
        registered(topic, [nsqlookupd], len(nsqds))


def held(nsqd: Nsqd) -> dict[str, set[str]]:
    """The channels of each topic."""
    topics = nsqd.stats()["topics"]
    return {
        each["topic_name"]: {channel["channel_name"] for channel in each["channels"]}
        for each in topics
    }


def results(ended: Result) -> dict[str, tuple[str, str]]:
    """Result and state of each topic or channel."""
    said = json.loads(ended.stdout)
    entries = said[f"{said['kind']}s"]
    return {
        each.get("channel") or each["topic"]: (each["result"], each["state"]) for each in entries
    }


def consume(nsqtools_cli: Cli, nsqd: Nsqd, topic: str, channel: str = "c") -> Any:
    """A consumer that stays connected."""
    to = "--nsqd-tcp-address", str(nsqd.tcp)
    tail = nsqtools_cli.start("tail", "--topic", topic, "--channel", channel, *to)
    eventually(lambda: nsqd.channel(topic, channel)["client_count"])
    return tail


def test_only_topics_that_nobody_uses_are_deleted_and_everywhere(
    nsqtools_cli: Cli, nsqds: list[Nsqd], nsqlookupd: Nsqlookupd, servers: list[str]
) -> None:
    create(nsqlookupd, nsqds, "idle", "full", "read", "kept")
    create(nsqlookupd, nsqds, "passing#ephemeral")
    fill(nsqds[1], "full", count=2)
    consume(nsqtools_cli, nsqds[0], "read")
    before = [held(nsqd) for nsqd in nsqds]
    words = ("topic", "prune", "--topic-pattern", "^[^k]", *WATCH, "--json", *servers)
    planned = nsqtools_cli(*words, "--dry-run")
    expected = {"full": ("kept", "holding"), "idle": ("planned", "idle"), "read": ("kept", "used")}
    assert (planned.code, results(planned)) == (0, expected)
    assert nsqtools_cli(*words).code == 2
    assert [held(nsqd) for nsqd in nsqds] == before
    ended = nsqtools_cli(*words, "--yes")
    assert ended.code == 0, ended.stderr
    assert "--watch-for 100ms is less than a minute" in ended.stderr
    assert results(ended) == {"full": ("kept", "holding"), "idle": ("deleted", "idle")}
    kept = {"full", "read", "kept", "passing#ephemeral"}
    assert [held(nsqd).keys() for nsqd in nsqds] == [kept, kept]
    assert not nsqlookupd.lookup("idle")
    ended = nsqtools_cli(*words, "--yes", "--with-messages")
    assert results(ended) == {"full": ("deleted", "holding")}
    kept -= {"full"}
    assert [held(nsqd).keys() for nsqd in nsqds] == [kept, kept]
    assert nsqtools_cli("topic", "prune", "--topic", "idle", *WATCH, "--yes", *servers).code == 1


def test_only_channels_that_nobody_uses_are_deleted_and_their_topics_stay(
    nsqtools_cli: Cli, nsqds: list[Nsqd], nsqlookupd: Nsqlookupd, servers: list[str]
) -> None:
    for nsqd in nsqds:
        for channel in ("idle", "other", "read", "passing#ephemeral"):
            nsqd.create("t", channel)
    registered("t", [nsqlookupd], 2)
    consume(nsqtools_cli, nsqds[1], "t", "read")
    words = ("channel", "prune", *WATCH, "--yes", "--json", *servers)
    assert results(nsqtools_cli(*words, "--channel", "idle")) == {"idle": ("deleted", "idle")}
    assert [held(nsqd)["t"] >= {"other", "read"} for nsqd in nsqds] == [True, True]
    nsqds[0].pause("t")
    paused = nsqtools_cli(*words, "--channel", "other", "--dry-run")
    assert results(paused) == {"other": ("kept", "used")}
    assert b"paused" in paused.stdout
    assert nsqtools_cli(*words, "--channel", "idle").code == 1


def test_what_begins_to_be_used_while_the_command_asks_is_left(
    nsqtools_cli: Cli, nsqds: list[Nsqd], nsqlookupd: Nsqlookupd, servers: list[str]
) -> None:
    create(nsqlookupd, nsqds, "idle", "published", "read", "restored")
    words = ("topic", "prune", *WATCH, *servers)
    for typed in ("yes", "3", ""):
        with Terminal(nsqtools_cli, *words) as terminal:
            terminal.until("Type 4 to delete 4 topics")
            terminal.type(typed)
            assert terminal.end() == 1
    assert [held(nsqd).keys() for nsqd in nsqds] == [{"idle", "published", "read", "restored"}] * 2
    with Terminal(nsqtools_cli, *words) as terminal:
        terminal.until("Type 4 to delete 4 topics")
        nsqds[1].publish("published", [b"x"])
        consume(nsqtools_cli, nsqds[0], "read")
        nsqds[0].delete("restored")
        terminal.type("4")
        assert terminal.end() == 0
    assert held(nsqds[0]).keys() == {"published", "read"}
    assert held(nsqds[1]).keys() == {"published", "read", "restored"}
    assert nsqds[1].channel("published", "c")["depth"] == 1


def test_what_begins_to_be_used_between_two_deletions_is_left(
    nsqds: list[Nsqd], prune: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def and_publish(*args: Any, **options: Any) -> Any:
        taken = await delete_idle(*args, **options)
        nsqds[1].publish("b", [b"x"])
        return taken

    monkeypatch.setattr("nsqtools.cli.commands.admin.prune.delete_idle", and_publish)
    assert prune("a", "b", "c") == 0
    assert [held(nsqd).keys() for nsqd in nsqds] == [{"b"}, {"b"}]


def test_a_deletion_that_fails_on_one_server_is_no_success(
    nsqds: list[Nsqd],
    prune: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fail_on_one(servers: Servers, stages: Stages) -> list[Step]:
        steps = [step for steps in stages for step in steps]
        (last,) = [step for step in steps if step.name == str(nsqds[1].http)]
        error = HTTPError("went away", nsqds[1].http)
        steps.remove(last)
        return [*await carry_out(servers, [steps]), replace(last, error=error)]

    monkeypatch.setattr("nsqtools.engine.administration.carry_out", fail_on_one)
    assert prune("a", options=("--json",)) == 4
    (told,) = json.loads(capsys.readouterr().out)["topics"]
    assert (told["result"], [each["result"] for each in told["servers"]]) == (
        "failed",
        ["done", "done", "failed"],
    )


def test_after_a_signal_it_says_what_was_done(
    nsqds: list[Nsqd],
    prune: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def interrupted(servers: Servers, target: Target, *args: Any, **options: Any) -> Any:
        if target.topic == "b":
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        return await delete_idle(servers, target, *args, **options)

    monkeypatch.setattr("nsqtools.cli.commands.admin.prune.delete_idle", interrupted)
    assert prune("a", "b", "c") == 4
    rows = [line.split("\t")[:2] for line in capsys.readouterr().out.splitlines()]
    assert rows == [["a", "deleted"], ["b", "failed"], ["c", "kept"]]
    assert [held(nsqd).keys() for nsqd in nsqds] == [{"b", "c"}, {"b", "c"}]


def restart(nsqd: Nsqd) -> None:
    """Restart it; nsqd reports its start in whole seconds."""
    before = nsqd.stats()["start_time"]
    while nsqd.stats()["start_time"] == before:
        nsqd.restart()


def seen(age: float, *, by_nsqd: float | None = None) -> ClusterSample:
    """Of this age by the clocks of this host and of nsqd."""
    time = NOW - (age if by_nsqd is None else by_nsqd)
    return ClusterSample(NOW - age, {}, {}, times={"a": (time - 0.5, time + 0.5)})


@pytest.mark.parametrize(
    ("idle", "expected"), [(40, ["b", "a"]), (60, ["c", "d", "b", "a"]), (200, None)]
)
def test_the_youngest_snapshot_that_is_old_enough_and_all_after_it_count(
    idle: float, expected: list[str] | None
) -> None:
    """Also those of unknown age."""
    saved = {"a": seen(5), "b": seen(50), "c": seen(100), "d": replace(seen(70), times={})}
    pruning = Pruning(PruneOptions(idle=idle))
    if expected:
        assert [path for _, path in pruning._history(saved, seen(0))] == expected
    else:
        with pytest.raises(NSQError, match="c, was saved"):
            pruning._history(saved, seen(0))


@pytest.mark.parametrize(
    "wrong", [seen(40 * DAY, by_nsqd=5), seen(5, by_nsqd=40 * DAY), seen(-DAY, by_nsqd=40 * DAY)]
)
def test_one_clock_that_was_set_makes_no_snapshot_old(wrong: ClusterSample) -> None:
    with pytest.raises(NSQError, match="by the clock of"):
        Pruning(PruneOptions(idle=60))._history({"a": wrong}, seen(0))


def test_a_snapshot_of_unknown_age_is_not_old() -> None:
    with pytest.raises(NSQError, match="a: its age is unknown"):
        Pruning(PruneOptions(idle=60))._history({"a": replace(seen(DAY), times={})}, seen(0))


async def test_a_snapshot_that_is_replaced_meanwhile_is_not_old(
    nsqds: list[Nsqd], monkeypatch: pytest.MonkeyPatch
) -> None:
    span = 0.0, 1.0
    times = {str(nsqd.tcp): span for nsqd in nsqds}
    ages = iter((time.time() - 100, time.time()))
    monkeypatch.setattr(
        "nsqtools.cli.commands.admin.prune.load",
        lambda _: SavedSnapshot(next(ages), {}, times=times),
    )
    urls = tuple(str(nsqd.http) for nsqd in nsqds)
    options = PruneOptions(snapshot=("seen.json",), idle=60, nsqd_http_address=urls)
    with pytest.raises(NSQError, match="replaced while it was read"):
        await Pruning(options).observe()


@pytest.mark.nsqd_only("its topics survive a restart")
@pytest.mark.parametrize("disturb", [restart, Nsqd.stop], ids=["restarted", "stopped"])
def test_nothing_is_deleted_whose_use_is_unknown(
    nsqtools_cli: Cli,
    nsqds: list[Nsqd],
    nsqlookupd: Nsqlookupd,
    servers: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disturb: Callable[[Nsqd], None],
) -> None:
    """By snapshots; the topic that only the other nsqd has goes."""
    create(nsqlookupd, nsqds, "both")
    create(nsqlookupd, nsqds[:1], "one")
    path = str(tmp_path / "seen-1.json")
    assert nsqtools_cli("doctor", "--save", path, *servers).code in (0, 1, 4)
    words = ("topic", "prune", "--snapshot", str(tmp_path / "seen-*.json"), "--json", *servers)
    ahead = time.time_ns() + 40 * int(DAY) * 10**9
    with monkeypatch.context() as patch:
        patch.setattr("time.time_ns", lambda: ahead)
        assert exits.run(cli, [*words, "--yes"]) == 1  # it is not 30 days old
    words += ("--idle", "1h")
    saved = load(path)
    for hours, code in ((0.5, 1), (2, 0)):
        earlier = {n: (t - hours * 3600, u - hours * 3600) for n, (t, u) in saved.times.items()}
        at, uptime = saved.at - 2 * 3600, saved.uptime - 2 * 3600
        save(path, replace(saved, at=at, times=earlier, uptime=uptime))
        assert nsqtools_cli(*words, "--dry-run").code == code
    undisturbed = results(nsqtools_cli(*words, "--dry-run"))
    assert undisturbed == {"both": ("planned", "idle"), "one": ("planned", "idle")}
    disturb(nsqds[1])
    registered("both", [nsqlookupd], 2 if disturb is restart else 1)
    ended = nsqtools_cli(*words, "--yes")
    assert ended.code == 0, ended.stderr
    assert results(ended) == {"both": ("kept", "unknown"), "one": ("deleted", "idle")}
    assert held(nsqds[0]).keys() == {"both"}
    assert nsqlookupd.lookup("both")


@pytest.mark.nsqd_only("its topics survive a restart")
def test_a_server_that_does_not_answer_may_have_any_topic(
    nsqtools_cli: Cli, nsqds: list[Nsqd], nsqlookupd: Nsqlookupd
) -> None:
    create(nsqlookupd, nsqds, "both")
    create(nsqlookupd, nsqds[:1], "one")
    words = ("topic", "prune", *WATCH, "--yes", "--json")
    before = held(nsqds[0])
    nsqds[1].stop()
    ended = nsqtools_cli(*words, *http(nsqds))
    assert ended.code == 4
    assert results(ended) == {"both": ("kept", "silent"), "one": ("kept", "silent")}
    watch = nsqtools_cli.start(
        "topic", "prune", "--watch-for", "1h", "--yes", *http(nsqds), stderr=subprocess.PIPE
    )
    assert watch.stderr
    assert b"connection refused" in watch.stderr.readline()
    watch.terminate()
    assert watch.wait(60) == 1
    nsqlookupd.stop()
    ended = nsqtools_cli(*words, *http(nsqds[:1]), *lookup([nsqlookupd]))
    assert ended.code == 4
    assert results(ended) == {"both": ("kept", "silent"), "one": ("kept", "silent")}
    assert held(nsqds[0]) == before
    assert nsqtools_cli(*words, *http(nsqds[1:])).code == 3
