"""What is found wrong, judged from facts alone: what live servers do not show on demand."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from nsqtools.cli import cli
from nsqtools.engine.doctor.diagnosis import diagnose
from nsqtools.engine.doctor.facts import Facts, Finding, LookupdFacts, NsqdFacts
from nsqtools.errors import ConnectError, HTTPError, HTTPPortError, RefusedError
from nsqtools.names import Address
from nsqtools.net.http import ClientStats, TopicStats
from nsqtools.proto.session import Features
from tests.support.staging import channel, events, producer

if TYPE_CHECKING:
    from collections.abc import Iterable


def client(ready: int, in_flight: int = 0, *, finished: int = 0, port: int = 1) -> ClientStats:
    flags = dict.fromkeys(("tls", "snappy", "deflate", "authed"), False)
    return ClientStats(
        client_id="c",
        hostname="host",
        user_agent="agent/1",
        remote_address=f"10.0.0.1:{port}",
        state=3,
        ready_count=ready,
        in_flight=in_flight,
        message_count=0,
        finish_count=finished,
        requeue_count=0,
        connect_ts=0,
        **flags,
    )


def nsqd(host: str = "a", topic: TopicStats | None = None, **values: Any) -> NsqdFacts:
    tcp, http = Address(host, 4150), Address(host, 4151)
    known = {"tcp": tcp, "url": str(http), "given": True, "version": "1.3.0", **values}
    return NsqdFacts(**{"http": http, "topic": topic, "features": Features(), **known})


def lookupd(host: str = "l", **values: Any) -> LookupdFacts:
    return LookupdFacts(url=f"{host}:4161", address=Address(host, 4161), **values)


def facts(
    *nsqds: NsqdFacts, lookupds: Iterable[LookupdFacts] = (), channel: str = "c", **values: Any
) -> Facts:
    known = {"uses_tls": False, "has_secret": False, "max_in_flight": 2500, **values}
    return Facts(topic="events", channel=channel, lookupds=tuple(lookupds), nsqds=nsqds, **known)


def refused(host: str, port: int = 4151) -> HTTPError:
    return HTTPError("connection refused", Address(host, port), reason="dial")


def unresolved(host: str, **values: Any) -> NsqdFacts:
    error = ConnectError(f"cannot resolve '{host}'", Address(host, 4150), reason="name")
    http_error = HTTPError(f"cannot resolve '{host}'", Address(host, 4151))
    return nsqd(host, features=None, tcp_error=error, http_error=http_error, **values)


def listing(host: str, **values: Any) -> LookupdFacts:
    known = producer(host, "events")
    return lookupd(topics=frozenset({"events"}), producers=(known,), nodes=(known,), **values)


def not_ok(found: Facts) -> list[Finding]:
    return [each for each in diagnose(found) if each.level != "ok"]


def consumed(*clients: ClientStats, depth: int = 5, **values: Any) -> TopicStats:
    return events(channel("c", *clients, depth=depth, **values))


def http_port(**values: Any) -> NsqdFacts:
    """An nsqd whose TCP address is an HTTP port."""
    wrong = HTTPPortError("this is the HTTP port", Address("a", 4150))
    return nsqd("a", features=None, tcp_error=wrong, tcp_speaks="http", **values)


WELL = events(channel(depth=1, client_count=1))
AT_A: dict[str, Any] = {"given": False, "producer": producer("a", "events")}
HIDDEN = producer("b", "events", hidden=True)
AWAY = ConnectError("connection refused", Address("b", 4150), reason="dial")
LIMITED = nsqd("a", WELL, features=Features(max_rdy_count=1250))
NO_HTTP = HTTPError("no usable reply", Address("a", 4151))
DEAD = lookupd("m", error=refused("m", 4161))
LATE = HTTPError("not asked: --timeout had expired", reason="silence")
A = "--nsqd-http-address a:4151"
L = "--lookupd-http-address l:4161"

# name: facts; of each finding that is not ok its level, its check, and what text and fix name
CASES: dict[str, tuple[Facts, list[tuple[str, str, str, str]]]] = {
    "a clock that is ahead": (
        facts(nsqd("a", WELL), nsqd("b", WELL, skew=90.4)),
        [("warning", "clock", "b:4150 is 90 s ahead", "clocks")],
    ),
    "clocks that are nearly right": (facts(nsqd("a", WELL, skew=-4.9)), []),
    "different versions": (
        facts(nsqd("a", WELL), nsqd("b", WELL, version="1.2.1")),
        [("warning", "version", "1.2.1, 1.3.0", "")],
    ),
    "a stranger that is dead": (facts(nsqd("a", WELL), nsqd("b", given=False, tcp_error=AWAY)), []),
    "fewer slots than nsqds": (
        facts(*(nsqd(host, WELL) for host in "abc"), max_in_flight=2),
        [("warning", "max-in-flight", "--max-in-flight 2 is less than 3", "")],
    ),
    "as much in flight as two nsqds allow": (
        facts(LIMITED, nsqd("b", WELL, features=LIMITED.features)),
        [],
    ),
    "a consumer that finished something": (
        facts(nsqd("a", consumed(client(1, 1)), later=consumed(client(1, 1, finished=3)))),
        [("warning", "consumers", "shared", "")],
    ),
    "a consumer that is full and slow": (
        facts(nsqd("a", consumed(client(1, 1)), later=consumed(client(1, 1)))),
        [("warning", "consumers", "1 of RDY 1 in flight on nsqd a:4150", "stats --clients")],
    ),
    "a consumer that is full while messages time out, beside one that works": (
        facts(
            nsqd(
                "a",
                consumed(client(2, 2), client(10, port=2), timeout_count=7),
                later=consumed(client(2, 2), client(10, port=2), timeout_count=9),
            )
        ),
        [("warning", "consumers", "2 messages", ""), ("warning", "consumers", "shared", "")],
    ),
    "RDY 0 of all consumers while messages wait": (
        facts(nsqd("a", consumed(client(0), client(0, port=2)))),
        [("failure", "consumers", "RDY 0 on nsqd a:4150", "")] * 2,
    ),
    "RDY 0 of all consumers of an empty channel": (
        facts(nsqd("a", consumed(client(0), depth=0))),
        [("warning", "consumers", "RDY 0", "")],
    ),
    "many consumers": (
        facts(nsqd("a", consumed(*(client(1, port=port) for port in range(1, 9))))),
        [("warning", "consumers", "and 3 more", "")],
    ),
    "an nsqd that is dead and listed with a tombstone": (
        facts(
            nsqd(
                "b",
                given=False,
                producer=HIDDEN,
                features=None,
                tcp_error=AWAY,
                http_error=refused("b"),
            ),
            lookupds=[lookupd(topics=frozenset({"events"}), nodes=(HIDDEN,))],
        ),
        [
            ("failure", "tombstone", "b:4150", "--tombstone-lifetime"),
            ("failure", "tcp", "b:4150: connection refused", ""),
        ],
    ),
    "messages that are deferred": (
        facts(nsqd("a", events(channel(deferred=4)))),
        [("warning", "channel", "deferred 4", "stats --clients")],
    ),
    "a backlog that nobody consumes": (
        facts(nsqd("a", events(channel(depth=3)))),
        [("warning", "channel", "depth 3", "tail --topic events --channel c")],
    ),
    "the name of a container": (
        facts(
            unresolved("3f0a", given=False, producer=producer("3f0a", "events")),
            lookupds=[lookupd(topics=frozenset({"events"}), producers=(producer("3f0a"),))],
        ),
        [("failure", "tcp", "'3f0a', its broadcast address; it registered from 172.17", "")],
    ),
    "a given name that cannot be resolved": (
        facts(unresolved("wbe1")),
        [("failure", "tcp", "'wbe1'", "check the name")],
    ),
    "all nsqlookupds dead": (
        facts(lookupds=[lookupd("l", error=refused("l", 4161)), DEAD]),
        [("failure", "nsqlookupd", "l:4161", ""), ("failure", "nsqlookupd", "m:4161", "")],
    ),
    "an nsqd that is listed and lacks the topic": (
        facts(nsqd("a", **AT_A), lookupds=[listing("a")]),
        [("failure", "listing", "a:4150", "--broadcast-address")],
    ),
    "an nsqd whose HTTP is dead, so that nobody knows whether it has the topic": (
        facts(nsqd("a", http_error=refused("a"), **AT_A), lookupds=[listing("a")]),
        [("warning", "http", "a:4151", "")],
    ),
    "nsqlookupds that answer without any nsqd": (
        facts(lookupds=[lookupd(), DEAD]),
        [
            ("warning", "nsqlookupd", "m:4161", ""),
            ("failure", "listing", "that answers", "--lookupd-tcp-address"),
        ],
    ),
    "swapped ports of a listed nsqd": (
        facts(http_port(topic=WELL, tcp_port=7, **AT_A), lookupds=[listing("a")]),
        [("failure", "tcp", "a:4150", "start that nsqd with --broadcast-tcp-port=7")],
    ),
    "the TCP port that a listed nsqd broadcasts for HTTP": (
        facts(nsqd("a", http_error=NO_HTTP, http_speaks="nsqd", **AT_A), lookupds=[listing("a")]),
        [("failure", "http", "a:4151", "--broadcast-http-port=")],
    ),
    "a TCP port that was given for HTTP": (
        facts(
            nsqd("a", http_error=NO_HTTP, http_speaks="nsqd", http=Address("b", 1), **AT_A),
            lookupds=[listing("a")],
        ),
        [("failure", "http", "", "--nsqd-http-address")],
    ),
    "a topic that is not listed": (
        facts(lookupds=[lookupd(nodes=(producer("b", "other"),), topics=frozenset({"other"}))]),
        [("failure", "listing", "events", f": nsqtools lookup topics {L}")],
    ),
    "messages that wait for the missing channel": (
        facts(nsqd("a", events(depth=3))),
        [("warning", "depth", "no channel c anywhere", f"channel create events c {A}")],
    ),
    "messages that wait for a channel with another name": (
        facts(nsqd("a", events(depth=3)), nsqd("b", events(channel("archive"))), channel="archve"),
        [("warning", "depth", "3 messages wait in topic events", "events archve")],
    ),
    "who had no time to be asked": (
        facts(nsqd("a", features=None, tcp_error=LATE, http_error=LATE)),
        [("failure", "tcp", "", "--timeout")],
    ),
}


@pytest.mark.parametrize(("found", "expected"), CASES.values(), ids=CASES)
def test_each_fault_is_found_with_its_culprit(
    found: Facts, expected: list[tuple[str, str, str, str]]
) -> None:
    findings = not_ok(found)
    assert [(each.level, each.check) for each in findings] == [each[:2] for each in expected]
    for finding, (_, _, culprit, fix) in zip(findings, expected, strict=True):
        assert culprit in finding.text
        assert fix in finding.fix


@pytest.mark.parametrize(
    ("words", "fix"),
    [("msg timeout (60000) is invalid", "--msg-timeout"), ("sample rate (100) is invalid", "")],
)
def test_what_nsqd_refuses_is_not_mended_by_starting_it(words: str, fix: str) -> None:
    text = f"nsqd refused the connection: E_BAD_BODY IDENTIFY {words}"
    refusal = RefusedError(text, Address("a", 4150))
    (finding,) = not_ok(facts(nsqd("a", WELL, tcp_error=refusal, features=None)))
    assert words in finding.text
    assert fix in finding.fix
    assert "start" not in finding.fix


def test_a_server_that_is_there_but_is_another_counts_as_reached() -> None:
    wrong = lookupd("l", error=HTTPError("no usable reply", Address("l", 4161)), speaks="nsqd")
    assert facts(lookupds=[wrong]).anybody
    assert not facts(lookupds=[DEAD]).anybody


@pytest.mark.parametrize(
    ("topic", "channel", "listed", "command"),
    [
        (None, "c", False, "pub --topic events --nsqd-tcp-address a:4150 hello"),
        (events(published=0), "c", False, "pub --topic events --nsqd-tcp-address a:4150 hello"),
        (events(channel("d")), "c", False, f"channel create events c {A}"),
        (events(channel("d")), "c", True, f"channel create events c {L}"),
        (
            events(channel("c"), channel("d", depth=2)),
            "c",
            False,
            "tail --topic events --channel d --nsqd-tcp-address a:4150",
        ),
        (
            events(channel("c"), channel("d", depth=2)),
            "c",
            True,
            f"tail --topic events --channel d {L}",
        ),
        (consumed(client(0)), "c", True, f"stats --clients --topic events --channel c {L}"),
        (consumed(client(9)), "c", False, "tail --topic events --nsqd-tcp-address a:4150"),
        (
            events(channel("c#ephemeral", paused=True)),
            "c#ephemeral",
            True,
            f"channel unpause events 'c#ephemeral' {A}",
        ),
        (
            events(depth=3),
            "c#ephemeral",
            False,
            "tail --topic events --channel 'c#ephemeral' --nsqd-tcp-address a:4150",
        ),
    ],
)
def test_what_to_do_is_a_command_with_the_servers_in_question(
    topic: TopicStats | None, channel: str, listed: bool, command: str
) -> None:
    found = facts(nsqd("a", topic), channel=channel, lookupds=[listing("a")] if listed else [])
    fixes = [each.fix for each in diagnose(found) if each.fix]
    assert any(f": {fix}".endswith(f": nsqtools {command}") for fix in fixes), fixes
    assert CliRunner().invoke(cli, [*shlex.split(command), "--help"]).exit_code == 0
