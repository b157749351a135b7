"""What is found wrong, judged from facts alone: what live servers do not show on demand.

The lines are many because there is much that can be wrong.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.engine.doctor.diagnosis import diagnose
from nsqtools.engine.doctor.facts import Facts, Finding, LookupdFacts, NsqdFacts
from nsqtools.errors import ConnectError, HTTPError, HTTPPortError, RefusedError
from nsqtools.names import Address
from nsqtools.net.http import ChannelStats, ClientStats, Producer, TopicStats
from nsqtools.proto.session import Features
from tests.test_readme import parse

if TYPE_CHECKING:
    from collections.abc import Iterable


def client(ready: int, in_flight: int = 0, *, finished: int = 0, port: int = 1) -> ClientStats:
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
        tls=False,
        snappy=False,
        deflate=False,
        authed=False,
    )


def channel(name: str = "c", *clients: ClientStats, **values: Any) -> ChannelStats:
    numbers = ("depth", "backend_depth", "in_flight", "deferred", "message_count")
    more = ("requeue_count", "timeout_count")
    return ChannelStats(
        **{
            "name": name,
            "paused": False,
            "clients": clients,
            "client_count": len(clients),
            **dict.fromkeys(numbers + more, 0),
            **values,
        }
    )


def events(*channels: ChannelStats, published: int = 1, depth: int = 0) -> TopicStats:
    return TopicStats("events", depth, 0, published, False, channels)


def nsqd(host: str = "a", topic: TopicStats | None = None, **values: Any) -> NsqdFacts:
    tcp, http = Address(host, 4150), Address(host, 4151)
    known = {"tcp": tcp, "url": str(http), "given": True, "version": "1.3.0", **values}
    return NsqdFacts(**{"http": http, "topic": topic, "features": Features(), **known})


def lookupd(host: str = "l", **values: Any) -> LookupdFacts:
    return LookupdFacts(url=f"{host}:4161", address=Address(host, 4161), **values)


def producer(host: str, *topics: str, hidden: bool = False) -> Producer:
    marks = (hidden,) * len(topics)
    return Producer(host, host, "172.17.0.5:33000", 4150, 4151, "1.3.0", topics, marks)


def facts(
    *nsqds: NsqdFacts, lookupds: Iterable[LookupdFacts] = (), channel: str = "c", **values: Any
) -> Facts:
    known = {"uses_tls": False, "has_secret": False, "max_in_flight": 2500, **values}
    return Facts(topic="events", channel=channel, lookupds=tuple(lookupds), nsqds=nsqds, **known)


def not_ok(found: Facts) -> list[tuple[str, str, str]]:
    return [(f.level, f.check, f.text) for f in diagnose(found) if f.level != "ok"]


def the_only(found: Facts) -> Finding:
    (finding,) = (each for each in diagnose(found) if each.level != "ok")
    return finding


WELL = events(channel(depth=1, client_count=1))


@pytest.mark.parametrize(
    ("skew", "text"),
    [(90.4, "is 90 s ahead of ours"), (-3600.0, "is 3600 s behind ours")],
)
def test_a_clock_that_is_off_is_told(skew: float, text: str) -> None:
    finding = the_only(facts(nsqd("a", WELL), nsqd("b", WELL, skew=skew)))
    assert (finding.level, finding.check) == ("warning", "clock")
    assert finding.text == f"the clock of nsqd b:4150 {text}: so are its timestamps"


@pytest.mark.parametrize("skew", [0.0, 4.9, -4.9])
def test_a_clock_that_is_nearly_right_is_well(skew: float) -> None:
    assert not_ok(facts(nsqd("a", WELL, skew=skew))) == []


def test_different_versions_are_told() -> None:
    found = facts(nsqd("a", WELL), nsqd("b", WELL, version="1.2.1"))
    assert the_only(found).text == "nsqds run different versions: 1.2.1, 1.3.0"


def test_nsqds_that_have_nothing_to_do_with_the_topic_are_left_out() -> None:
    stranger = nsqd(
        "b", given=False, tcp_error=ConnectError("connection refused", Address("b", 4150))
    )
    assert not_ok(facts(nsqd("a", WELL), stranger)) == []


def test_fewer_slots_than_nsqds_take_turns() -> None:
    found = facts(nsqd("a", WELL), nsqd("b", WELL), nsqd("c", WELL), max_in_flight=2)
    assert the_only(found).text == "--max-in-flight 2 is less than 3 nsqds: they take turns"


def test_rdy_is_compared_with_the_share_of_each_nsqd() -> None:
    limited = Features(max_rdy_count=1250)
    two = [nsqd("a", WELL, features=limited), nsqd("b", WELL, features=limited)]
    assert not_ok(facts(*two)) == []
    finding = the_only(facts(two[0]))
    assert finding.fix == "--max-in-flight 1250, or nsqd --max-rdy-count 2500"


def test_a_consumer_that_finished_something_meanwhile_is_not_stuck() -> None:
    before = events(channel("c", client(1, 1), depth=5, in_flight=1))
    after = events(channel("c", client(1, 1, finished=3), depth=2, in_flight=1))
    busy = facts(nsqd("a", before, later=after))
    assert [level for level, *_ in not_ok(busy)] == ["warning"]
    assert "is shared" in not_ok(busy)[0][2]


def test_a_consumer_with_room_at_the_first_look_is_not_stuck() -> None:
    before = events(channel("c", client(2, 1), depth=5, in_flight=1))
    after = events(channel("c", client(2, 2), depth=5, in_flight=2))
    ((level, _, text),) = not_ok(facts(nsqd("a", before, later=after)))
    assert (level, "is shared" in text) == ("warning", True)


def test_a_consumer_that_is_full_and_slow_is_no_failure() -> None:
    busy = events(channel("c", client(1, 1), depth=5, in_flight=1))
    level, check, text = not_ok(facts(nsqd("a", busy, later=busy)))[0]
    assert (level, check) == ("warning", "consumers")
    assert text.endswith("holds 1 of RDY 1 in flight on nsqd a:4150 and finished none in 1 s")


@pytest.mark.parametrize("depth", [0, 5])
def test_a_consumer_that_is_full_while_messages_time_out_is_a_failure(depth: int) -> None:
    def at(timeouts: int, *others: ClientStats) -> TopicStats:
        held = channel("c", client(2, 2), *others, depth=depth, timeout_count=timeouts)
        return events(held)

    level, _, text = not_ok(facts(nsqd("a", at(7), later=at(9))))[0]
    assert level == "failure"
    assert text.endswith(
        "finished none in 1 s, while 2 messages of the channel timed out: it gets no more"
    )
    works = client(10, port=2)
    assert not_ok(facts(nsqd("a", at(7, works), later=at(9, works))))[0][0] == "warning"


def test_rdy_0_is_a_failure_only_if_all_have_it_and_messages_wait() -> None:
    none = events(channel("c", client(0), client(0, port=2), depth=5))
    assert [level for level, *_ in not_ok(facts(nsqd("a", none)))] == ["failure", "failure"]
    full = events(channel("c", client(0), client(1, 1, port=2), depth=5))
    levels = [level for level, *_ in not_ok(facts(nsqd("a", full, later=full)))]
    assert levels == ["warning", "warning"]


def test_an_nsqd_that_is_listed_with_a_tombstone_alone_matters() -> None:
    hidden = producer("b", "events", hidden=True)
    away = nsqd(
        "b",
        given=False,
        producer=hidden,
        features=None,
        tcp_error=ConnectError("connection refused", Address("b", 4150), reason="dial"),
        http_error=HTTPError("connection refused", Address("b", 4151), reason="dial"),
    )
    home = lookupd(topics=frozenset({"events"}), nodes=(hidden,))
    found = not_ok(facts(away, lookupds=[home]))
    assert ("failure", "tcp", "nsqd b:4150: connection refused") in found


A = "--nsqd-http-address a:4151"
L = "--lookupd-http-address l:4161"


@pytest.mark.parametrize(
    ("topic", "listed", "command"),
    [
        (None, False, "nsqtools pub --topic events --nsqd-tcp-address a:4150 hello"),
        (events(published=0), False, "nsqtools pub --topic events --nsqd-tcp-address a:4150 hello"),
        (events(depth=3), False, f"nsqtools channel create events c {A}"),
        (events(channel("d")), False, f"nsqtools channel create events c {A}"),
        (events(channel("d")), True, f"nsqtools channel create events c {L}"),
        (
            events(channel("c"), channel("d", depth=2)),
            False,
            "nsqtools tail --topic events --channel d --nsqd-tcp-address a:4150",
        ),
        (
            events(channel("c"), channel("d", depth=2)),
            True,
            f"nsqtools tail --topic events --channel d {L}",
        ),
        (
            events(channel("c", deferred=1)),
            False,
            f"nsqtools stats --clients --topic events --channel c {A}",
        ),
        (
            events(channel("c", client(0), depth=1)),
            True,
            f"nsqtools stats --clients --topic events --channel c {L}",
        ),
        (
            events(channel("c", client(9), depth=1)),
            False,
            "nsqtools tail --topic events --nsqd-tcp-address a:4150",
        ),
        (events(channel("c", paused=True)), True, f"nsqtools channel unpause events c {A}"),
    ],
)
def test_what_to_do_is_a_command_with_the_servers_in_question(
    topic: TopicStats | None, listed: bool, command: str
) -> None:
    known = producer("a", "events")
    home = lookupd(topics=frozenset({"events"}), producers=(known,), nodes=(known,))
    found = facts(nsqd("a", topic), lookupds=[home] if listed else [])
    fixes = [each.fix for each in diagnose(found) if each.fix]
    assert any(f": {fix}".endswith(f": {command}") for fix in fixes), fixes
    parse(shlex.split(command)[1:])


def test_one_stuck_consumer_beside_one_that_works_is_a_warning() -> None:
    both = events(channel("c", client(0), client(10, port=2), depth=5))
    levels = [level for level, check, _ in not_ok(facts(nsqd("a", both)))]
    assert levels == ["warning", "warning"]


def test_a_stuck_consumer_of_an_empty_channel_is_a_warning() -> None:
    idle = events(channel("c", client(0)))
    assert not_ok(facts(nsqd("a", idle)))[0][:2] == ("warning", "consumers")


def test_of_many_consumers_some_are_named() -> None:
    many = [client(1, port=port) for port in range(1, 9)]
    (finding,) = not_ok(facts(nsqd("a", events(channel("c", *many, depth=1)))))
    assert finding[2].count("consumer 10.0.0.1") == 5
    assert finding[2].endswith("and 3 more")


def test_messages_that_wait_for_their_time_are_told() -> None:
    finding = the_only(facts(nsqd("a", events(channel(deferred=4)))))
    assert (finding.level, finding.check) == ("warning", "channel")
    assert "is deferred" in finding.text


def test_all_servers_of_a_fix_are_named_as_they_were_given() -> None:
    paused = nsqd("a", events(channel("c#ephemeral", paused=True)), url="https://a:4152")
    found = facts(paused, channel="c#ephemeral")
    finding = the_only(found)
    assert finding.fix == (
        "nsqtools channel unpause events 'c#ephemeral' --nsqd-http-address https://a:4152"
    )


def test_a_name_of_a_container_is_told_with_where_it_registered_from() -> None:
    error = ConnectError("cannot resolve '3f0a'", Address("3f0a", 4150), reason="name")
    away = nsqd(
        "3f0a",
        given=False,
        producer=producer("3f0a", "events"),
        features=None,
        tcp_error=error,
        http_error=HTTPError("cannot resolve '3f0a'", Address("3f0a", 4151)),
    )
    home = lookupd(topics=frozenset({"events"}), producers=(producer("3f0a"),))
    (finding,) = (f for f in diagnose(facts(away, lookupds=[home])) if f.level == "failure")
    assert finding.text == (
        "nsqd 3f0a:4150: cannot resolve '3f0a', its broadcast address; "
        "it registered from 172.17.0.5:33000"
    )


def test_a_given_name_that_cannot_be_resolved_is_to_be_checked() -> None:
    error = ConnectError("cannot resolve 'wbe1'", Address("wbe1", 4150), reason="name")
    found = facts(
        nsqd("wbe1", features=None, tcp_error=error, http_error=HTTPError("cannot resolve 'wbe1'"))
    )
    assert (the_only(found).text, the_only(found).fix) == (
        "nsqd wbe1:4150: cannot resolve 'wbe1'",
        "check the name",
    )


def test_dead_nsqlookupds_are_failures_only_if_none_is_left() -> None:
    dead = HTTPError("connection refused", Address("l", 4161))
    both = facts(lookupds=[lookupd("l", error=dead), lookupd("m", error=dead)])
    assert [level for level, *_ in not_ok(both)] == ["failure", "failure"]
    assert not both.anybody
    one = facts(lookupds=[lookupd("l", error=dead), lookupd("m", topics=frozenset({"other"}))])
    assert [level for level, *_ in not_ok(one)] == ["warning", "failure"]
    assert one.anybody


def test_a_server_that_is_there_but_is_another_counts_as_reached() -> None:
    wrong = lookupd("l", error=HTTPError("no usable reply", Address("l", 4161)), speaks="nsqd")
    assert facts(lookupds=[wrong]).anybody


def listing(host: str, **values: Any) -> LookupdFacts:
    known = producer(host, "events")
    return lookupd(topics=frozenset({"events"}), producers=(known,), nodes=(known,), **values)


def refused(host: str, port: int) -> HTTPError:
    return HTTPError("connection refused", Address(host, port), reason="dial")


def test_an_nsqd_that_is_listed_and_lacks_the_topic_is_a_failure() -> None:
    other = nsqd("a", given=False, producer=producer("a", "events"))
    finding = the_only(facts(other, lookupds=[listing("a")]))
    assert finding == Finding(
        "failure",
        "listing",
        "nsqlookupd lists topic events at a:4150, but the nsqd there does not have it",
        "look at --broadcast-address and ports of the nsqd that has it",
    )


def test_of_an_nsqd_whose_http_is_dead_nobody_knows_whether_it_has_the_topic() -> None:
    other = nsqd("a", given=False, producer=producer("a", "events"), http_error=refused("a", 4151))
    assert [check for _, check, _ in not_ok(facts(other, lookupds=[listing("a")]))] == ["http"]


@pytest.mark.parametrize("topics", [frozenset(), frozenset({"events"})])
def test_nsqlookupds_without_any_nsqd_are_told(topics: frozenset[str]) -> None:
    finding = the_only(facts(lookupds=[lookupd(topics=topics), lookupd("m")]))
    assert (finding.level, finding.check) == ("failure", "listing")
    assert finding.text == "no nsqd is registered at any nsqlookupd"
    assert finding.fix.startswith("start nsqd with --lookupd-tcp-address")
    one = facts(lookupds=[lookupd(topics=topics), lookupd("m", error=refused("m", 4161))])
    assert ("failure", "listing", f"{finding.text} that answers") in not_ok(one)


def test_the_http_port_of_nsqlookupd_given_for_an_nsqd() -> None:
    wrong = HTTPPortError("this is the HTTP port", Address("a", 4150))
    away: dict[str, Any] = {"features": None, "http_error": refused("a", 4151)}
    found = facts(nsqd("a", tcp_error=wrong, tcp_speaks="http", is_lookupd=True, **away))
    assert the_only(found) == Finding(
        "failure",
        "tcp",
        "nsqd a:4150 is the HTTP port of an nsqlookupd",
        "--lookupd-http-address a:4150",
    )


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({"tcp_port": 7}, "--broadcast-tcp-port=7"),
        ({}, "--broadcast-tcp-port=PORT"),
        (
            {"tcp_port": 7, "http": Address("a", 4150), "url": "a:4150"},
            "--broadcast-tcp-port=7 --broadcast-http-port=4150",
        ),
    ],
)
def test_swapped_ports_of_a_listed_nsqd_are_its_own_to_mend(
    values: dict[str, Any], options: str
) -> None:
    wrong = HTTPPortError("this is the HTTP port", Address("a", 4150))
    swapped = nsqd(
        "a",
        WELL,
        given=False,
        producer=producer("a", "events"),
        tcp_error=wrong,
        tcp_speaks="http",
        features=None,
        **values,
    )
    finding = the_only(facts(swapped, lookupds=[listing("a")]))
    assert finding.text == "nsqd a:4150 is its HTTP port"
    assert finding.fix == f"start that nsqd with {options}"


def test_the_tcp_port_that_a_listed_nsqd_broadcasts_for_http_is_its_own_to_mend() -> None:
    error = HTTPError("no usable reply", Address("a", 4151))
    known: dict[str, Any] = {"given": False, "producer": producer("a", "events")}
    found = facts(nsqd("a", http_error=error, http_speaks="nsqd", **known), lookupds=[listing("a")])
    assert the_only(found).fix.startswith("start that nsqd with --broadcast-http-port=")
    # Not where the user gave another address for its HTTP.
    given = nsqd("a", http_error=error, http_speaks="nsqd", http=Address("b", 1), **known)
    assert "--nsqd-http-address" in the_only(facts(given, lookupds=[listing("a")])).fix


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (
            "msg timeout (60000) is invalid",
            "lower --msg-timeout, or raise nsqd's --max-msg-timeout",
        ),
        ("sample rate (100) is invalid", "change the option that it refuses"),
    ],
)
def test_what_nsqd_refuses_is_not_mended_by_starting_it(words: str, fix: str) -> None:
    text = f"nsqd refused the connection: E_BAD_BODY IDENTIFY {words}"
    error = RefusedError(text, Address("a", 4150))
    finding = the_only(facts(nsqd("a", WELL, tcp_error=error, features=None)))
    assert (finding.text, finding.fix) == (f"nsqd a:4150: {text}", fix)


def test_a_topic_that_is_not_listed_may_be_at_an_nsqd_that_does_not_register() -> None:
    home = lookupd(nodes=(producer("b", "other"),), topics=frozenset({"other"}))
    finding = the_only(facts(lookupds=[home]))
    assert finding.text == "no nsqlookupd lists topic events"
    assert (
        "if its nsqd runs without --lookupd-tcp-address, name it with --nsqd-http-address"
        in finding.fix
    )
    assert finding.fix.endswith(f": nsqtools lookup topics {L}")


@pytest.mark.parametrize(
    ("name", "more", "do"),
    [
        ("c", "", f"make c: nsqtools channel create events c {A}"),
        (
            "c#ephemeral",
            "",
            "consume c#ephemeral: nsqtools tail --topic events --channel 'c#ephemeral' "
            "--nsqd-tcp-address a:4150",
        ),
        (
            "archve",
            "; did you mean 'archive'?",
            f"make archve: nsqtools channel create events archve {A} --nsqd-http-address b:4151",
        ),
    ],
)
def test_messages_that_wait_for_the_missing_channel_are_one_finding(
    name: str, more: str, do: str
) -> None:
    waits = nsqd("a", events(depth=3))
    nsqds = [waits, nsqd("b", events(channel("archive")))] if more else [waits]
    finding = the_only(facts(*nsqds, channel=name))
    assert (finding.level, finding.check) == ("warning", "depth")
    assert finding.text == (
        "3 messages wait in topic events, which has no channel there, "
        f"and no channel {name} anywhere{more}"
    )
    first, _, command = do.partition(": ")
    assert finding.fix.startswith(f"{first}: the first channel of an nsqd gets what waits there: ")
    assert finding.fix.endswith(f": {command}")


def test_messages_that_wait_beside_a_channel_that_is_elsewhere() -> None:
    found = facts(nsqd("a", events(depth=3)), nsqd("b", WELL))
    assert the_only(found).text == "3 messages wait in topic events, which has no channel there"


def test_a_backlog_that_nobody_consumes_is_a_warning() -> None:
    finding = the_only(facts(nsqd("a", events(channel(depth=3)))))
    assert (finding.level, finding.check) == ("warning", "channel")
    assert "tail --topic events --channel c" in finding.fix


def test_who_has_no_time_to_be_asked_is_not_told_to_start() -> None:
    late = HTTPError("not asked: --timeout had expired", reason="silence")
    found = nsqd("a", features=None, tcp_error=late, http_error=late)
    assert "--timeout" in the_only(facts(found)).fix
