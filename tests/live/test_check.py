"""``stats --check`` on three nsqds and two nsqlookupds."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.nagios import read
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.nagios import Output
    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd, Server


@dataclass(slots=True)
class Watched:
    """A cluster whose nsqds all have a topic with the channel c, and how to check it."""

    cli: Cli
    nsqds: Sequence[Nsqd]
    lookupds: Sequence[Nsqlookupd]
    topic: str

    @property
    def given(self) -> list[str]:
        """Options for nsqds by address."""
        return [word for each in self.nsqds for word in ("--nsqd-http-address", str(each.http))]

    @property
    def listed(self) -> list[str]:
        """Options for nsqds as nsqlookupds list them."""
        return [
            word for each in self.lookupds for word in ("--lookupd-http-address", str(each.http))
        ]

    def run(self, *args: str) -> Result:
        return self.cli("stats", "--check", *args, timeout=40)

    def check(self, *args: str, where: Sequence[str] | None = None) -> Output:
        """What it prints for the topic; the exit status says the same."""
        ended = self.run("--topic", self.topic, *(self.given if where is None else where), *args)
        output = read(ended.stdout.decode())
        assert (ended.code, ended.stderr) == (output.code, "")
        return output

    def value(self, output: Output, label: str) -> float | None:
        return output.data[f"{self.topic}{label}"].value


@pytest.fixture
def watched(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> Watched:
    lookupds = [make_nsqlookupd(), make_nsqlookupd()]
    nsqds = [make_nsqd(lookupds=lookupds) for _ in range(3)]
    for nsqd in nsqds:
        nsqd.create(topic, "c")
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: len(lookupd.lookup(topic)) == 3)  # type: ignore[misc]
    return Watched(nsqtools_cli, nsqds, lookupds, topic)


@contextlib.contextmanager
def hanging(server: Server) -> Iterator[None]:
    """A server that takes connections and never answers."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@contextlib.contextmanager
def requeueing(nsqd: Nsqd, topic: str) -> Iterator[None]:
    """A consumer that gives back whatever comes, at once."""
    with Raw(nsqd.tcp) as client:
        client.subscribe(topic, ready=1)

        def work() -> None:
            with contextlib.suppress(OSError, EOFError):
                while True:
                    client.send(f"REQ {client.message().id} 0")

        worker = threading.Thread(target=work)
        worker.start()
        yield
        client.socket.shutdown(2)
        worker.join()


def test_depths_and_clients_are_those_of_all_nsqds_together(watched: Watched) -> None:
    for nsqd, count in zip(watched.nsqds, (5, 7, 0), strict=True):
        nsqd.publish(watched.topic, [b"x"] * count)
    eventually(lambda: watched.nsqds[1].channel(watched.topic, "c")["depth"] == 7)
    eventually(lambda: watched.nsqds[0].channel(watched.topic, "c")["depth"] == 5)
    with Raw(watched.nsqds[2].tcp) as client:
        client.subscribe(watched.topic)
        for where in (watched.given, watched.listed, [*watched.given, *watched.listed]):
            output = watched.check("--depth-warn", "11", "--depth-crit", "12", where=where)
            assert (output.state, output.text) == (
                "WARNING",
                f"{watched.topic}/c: depth 12 is over 11",
            )
            assert watched.value(output, "/c:depth") == 12
            assert watched.value(output, "/c:clients") == 1
            assert output.data["nsqds"].value == 3
        assert watched.check("--depth-warn", "12", "--clients-min", "1").state == "OK"
        critical = watched.check("--depth-crit", "11", "--clients-min", "2")
    assert [line.partition(":")[0] for line in critical.more] == ["CRITICAL", "CRITICAL"]
    assert "1 clients, fewer than 2" in critical.more[1]


def test_all_topics_are_checked_where_none_is_named(watched: Watched) -> None:
    watched.nsqds[0].create("other", "d")
    watched.nsqds[0].publish("other", [b"x"] * 4)
    eventually(lambda: watched.nsqds[0].channel("other", "d")["depth"] == 4)
    ended = watched.run("--depth-crit", "3", *watched.given)
    output = read(ended.stdout.decode())
    assert (ended.code, output.text) == (2, "other/d: depth 4 is over 3")
    assert (output.data["depth"].value, output.data["highest_depth"].value) == (4, 4)


def test_in_flight_messages_are_no_depth(watched: Watched) -> None:
    watched.nsqds[0].publish(watched.topic, [b"x"] * 3)
    with Raw(watched.nsqds[0].tcp) as client:
        client.subscribe(watched.topic, ready=3)
        eventually(lambda: watched.nsqds[0].channel(watched.topic, "c")["in_flight_count"] == 3)
        output = watched.check("--depth-crit", "0", "--inflight-warn", "2")
    assert (output.state, output.text) == ("WARNING", f"{watched.topic}/c: 3 in flight, over 2")


def test_a_killed_nsqd_is_a_warning_and_the_others_decide_the_rest(watched: Watched) -> None:
    watched.nsqds[1].publish(watched.topic, [b"x"] * 2)
    eventually(lambda: watched.nsqds[1].channel(watched.topic, "c")["depth"] == 2)
    watched.nsqds[0].kill()
    output = watched.check("--depth-crit", "2")
    assert output.state == "WARNING"
    assert output.text == f"nsqd {watched.nsqds[0].http}: connection refused"
    assert watched.value(output, "/c:depth") == 2
    assert watched.check("--depth-crit", "1").state == "CRITICAL"
    eventually(lambda: len(watched.lookupds[0].lookup(watched.topic)) == 2)
    eventually(lambda: len(watched.lookupds[1].lookup(watched.topic)) == 2)
    assert watched.check(where=watched.listed).state == "OK"  # nsqlookupd has forgotten it
    watched.nsqds[1].create("another")
    both = watched.check("--nsqds-min", "2", "--topic", "another", where=watched.listed)
    assert both.state == "OK"  # though one of them does not have it
    fewer = watched.check("--nsqds-min", "3", where=watched.listed)
    assert (fewer.state, fewer.text) == ("CRITICAL", "2 nsqds answer, fewer than 3")
    for nsqd in watched.nsqds[1:]:
        nsqd.kill()
    both = watched.check(where=[*watched.given, *watched.listed])
    assert (both.state, both.text[:24]) == ("CRITICAL", "none of 3 nsqds answers ")
    assert watched.check().state == "UNKNOWN"
    watched.nsqds[0].start()
    watched.nsqds[0].create(watched.topic, "c")
    assert watched.check("--nsqds-min", "1").state == "WARNING"


def test_a_silent_nsqlookupd_is_a_warning_and_both_are_unknown(watched: Watched) -> None:
    watched.lookupds[0].kill()
    output = watched.check(where=watched.listed)
    assert output.state == "WARNING"
    assert output.text == f"nsqlookupd {watched.lookupds[0].http}: connection refused"
    assert output.data["nsqds"].value == 3
    watched.lookupds[1].kill()
    assert watched.check(where=watched.listed).state == "UNKNOWN"
    assert watched.check(where=[*watched.given, *watched.listed]).state == "WARNING"


def test_a_server_that_hangs_costs_its_part_of_the_time(watched: Watched) -> None:
    begin = time.monotonic()
    with hanging(watched.nsqds[0]), hanging(watched.lookupds[0]):
        where = [*watched.given, *watched.listed]
        output = watched.check("--timeout", "3s", where=where)
        assert output.state == "WARNING"
        assert len(output.more) == 2
        assert all("--timeout" in line for line in output.more)
        slow = watched.check("--timeout", "4s", "--age-crit", "1s", "--interval", "10ms")
        assert slow.state == "WARNING"
    assert time.monotonic() - begin < 30


def test_a_pause_is_critical_if_asked_for(watched: Watched) -> None:
    watched.nsqds[2].pause(watched.topic, "c")
    assert watched.check().state == "OK"
    output = watched.check("--paused")
    assert (output.state, output.text) == ("CRITICAL", f"{watched.topic}/c: paused")
    watched.nsqds[2].unpause(watched.topic, "c")
    watched.nsqds[0].pause(watched.topic)
    assert watched.check("--paused").text == f"{watched.topic}: paused"
    watched.nsqds[0].publish(watched.topic, [b"x"] * 3)
    assert watched.check("--depth-crit", "2").text == f"{watched.topic}: depth 3 is over 2"
    watched.nsqds[0].unpause(watched.topic)
    assert watched.check("--paused").state == "OK"


def test_what_is_named_and_missing_is_critical(watched: Watched) -> None:
    for where in (watched.given, watched.listed):
        assert watched.check("--channel", "c", where=where).state == "OK"
        output = watched.check("--channel", "d", where=where)
        assert (output.state, output.text) == (
            "CRITICAL",
            f"{watched.topic}/d: no nsqd has it",
        )
        for nsqd in watched.nsqds:
            with contextlib.suppress(LookupError):
                nsqd.delete(watched.topic)
        gone = watched.check(where=where)
        assert (gone.state, gone.text) == ("CRITICAL", f"{watched.topic}: no nsqd has it")
        for nsqd in watched.nsqds:
            nsqd.create(watched.topic, "c")
        eventually(lambda: watched.check(where=watched.listed).state == "OK")


def test_messages_that_nobody_takes_are_infinitely_old(watched: Watched) -> None:
    fresh = ("--age-crit", "1h", "--interval", "100ms")
    assert watched.check(*fresh).state == "OK"
    watched.nsqds[0].publish(watched.topic, [b"x"] * 2)
    eventually(lambda: watched.nsqds[0].channel(watched.topic, "c")["depth"] == 2)
    output = watched.check(*fresh)
    assert output.state == "CRITICAL"
    assert output.text == f"{watched.topic}/c: 2 messages wait and none is taken"
    assert watched.value(output, "/c:age") is None


def test_requeues_are_counted_per_second(watched: Watched) -> None:
    watched.nsqds[0].publish(watched.topic, [b"x"])
    rates = ("--requeue-rate-crit", "0.1", "--interval", "500ms")
    assert watched.check(*rates).state == "OK"
    with requeueing(watched.nsqds[0], watched.topic):
        output = watched.check(*rates, "--timeout-rate-crit", "0.1")
    assert output.state == "CRITICAL"
    assert "requeued per second, over 0.1" in output.text
    rate = watched.value(output, "/c:requeue_rate")
    assert rate
    assert rate > 0.1
    assert watched.value(output, "/c:timeout_rate") == 0


def test_timeouts_are_counted_per_second(watched: Watched, make_nsqd: MakeNsqd, topic: str) -> None:
    nsqd = make_nsqd("-msg-timeout=200ms")
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"])
    with Raw(nsqd.tcp) as client:
        client.subscribe(topic, ready=5)
        # nsqd looks at a new channel only after its queue-scan-refresh-interval.
        eventually(lambda: nsqd.channel(topic, "c")["timeout_count"])
        where = ("--nsqd-http-address", str(nsqd.http))
        rates = ("--timeout-rate-warn", "0.1", "--timeout-rate-crit", "1000", "--interval", "1s")
        output = watched.check(*rates, where=where)
    assert output.state == "WARNING"
    assert "timed out per second, over 0.1" in output.text
