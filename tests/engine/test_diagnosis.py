"""What is found wrong, judged from facts alone: what live servers do not show on demand."""

# size: the faults of a topic and of a cluster are cases of one test

import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nsqtools.cli import cli
from nsqtools.engine.cluster import Node, Snapshot
from nsqtools.engine.doctor import diagnose, findings_of
from nsqtools.engine.doctor.facts import Facts, LookupdFacts, NsqdFacts
from nsqtools.engine.doctor.findings import BY_CODE, Finding
from nsqtools.errors import AuthError, HTTPError, RefusedError, UnreachableError
from nsqtools.names import Address
from nsqtools.net.http.replies import ClientStats, NsqdStats, TopicStats
from nsqtools.proto.session import Features
from tests.support.staging import channel, events, producer

NOW_S = 1_000_000_000
NOW, DAY = float(NOW_S), 86400.0
YEAR = 366 * 86400


def client(ready: int, in_flight: int = 0, port: int = 1) -> ClientStats:
    texts = {"client_id": "c", "hostname": "host", "user_agent": "agent/1"}
    numbers = dict.fromkeys(("message_count", "finish_count", "requeue_count", "connect_ts"), 0)
    flags = dict.fromkeys(("tls", "snappy", "deflate", "authed"), False)
    at: dict[str, Any] = {**texts, **numbers, **flags, "remote_address": f"10.0.0.1:{port}"}
    return ClientStats(state=3, ready_count=ready, in_flight=in_flight, **at)


def nsqd(host: str = "a", topic: TopicStats | None = None, **values: Any) -> NsqdFacts:
    tcp, http = Address(host, 4150), Address(host, 4151)
    known = {"tcp": tcp, "url": str(http), "given": True, "version": "1.3.0", **values}
    known.setdefault("time", (NOW_S, NOW_S + 1))
    return NsqdFacts(**{"http": http, "topic": topic, "features": Features(), **known})


def lookupd(host: str = "l", **values: Any) -> LookupdFacts:
    return LookupdFacts(url=f"{host}:4161", address=Address(host, 4161), **values)


def facts(
    *nsqds: NsqdFacts, lookupds: Iterable[LookupdFacts] = (), channel: str = "c", **values: Any
) -> Facts:
    known = {"has_secret": False, "max_in_flight": 2500, **values}
    return Facts(topic="events", channel=channel, lookupds=tuple(lookupds), nsqds=nsqds, **known)


def refused(host: str, port: int = 4151) -> HTTPError:
    return HTTPError("connection refused", Address(host, port), reason="dial")


def listing(host: str, **values: Any) -> LookupdFacts:
    known = producer(host, "events")
    return lookupd(topics=frozenset({"events"}), producers=(known,), nodes=(known,), **values)


def not_ok(found: Facts) -> list[Finding]:
    return [each for each in diagnose(found) if each.severity != "ok"]


def consumed(*clients: ClientStats, depth: int = 5, **values: Any) -> TopicStats:
    return events(channel("c", *clients, depth=depth, **values))


WELL = events(channel(depth=1, client_count=1))
AT_A: dict[str, Any] = {"given": False, "producer": producer("a", "events")}
UNKNOWN = UnreachableError("cannot resolve 'wbe1'", Address("wbe1", 4150), reason="name")
WRONG = RefusedError("answered in HTTP", Address("a", 4150), reason="protocol")
SWAPPED: dict[str, Any] = {"features": None, "tcp_error": WRONG, "tcp_speaks": "http"}
AWAY = UnreachableError("connection refused", Address("b", 4150), reason="dial")
USED, NINE = channel(client_count=1), Features(max_rdy_count=9)
AT = Address("a", 4150)
AT_W: dict[str, Any] = {"given": False, "producer": producer("wbe1", "events")}
HAVING = [listing("a")]
DEAF = refused("a")
NO_SECRET = AuthError("E_AUTH_FAILED AUTH failed", AT)
NOT_HERE = AuthError("E_UNAUTHORIZED AUTH failed", AT)
UNTRUSTED = UnreachableError("unknown certificate", AT, reason="tls")
DISTRUSTED = HTTPError("unknown certificate", Address("a", 4151), reason="tls")
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
    "different versions": (
        facts(nsqd("a", WELL), nsqd("b", WELL, version="1.2.1")),
        [("warning", "version", "1.2.1 (nsqd b:4150), 1.3.0 (nsqd a:4150)", "upgrade")],
    ),
    "a message in flight for each nsqd": (
        facts(nsqd("a", WELL), nsqd("b", WELL), max_in_flight=2),
        [],
    ),
    "fewer messages in flight than nsqds": (
        facts(nsqd("a", WELL), nsqd("b", WELL), max_in_flight=1),
        [("warning", "max-in-flight", "they take turns", "--max-in-flight 2")],
    ),
    "a stranger that is dead": (facts(nsqd("a", WELL), nsqd("b", given=False, tcp_error=AWAY)), []),
    "a consumer that is full and slow": (
        facts(nsqd("a", consumed(client(1, 1)), later=consumed(client(1, 1)))),
        [("warning", "consumers", "RDY 1 on nsqd a:4150", "stats --clients")],
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
        [("error", "consumers", "RDY 0 on nsqd a:4150", "")] * 2,
    ),
    "RDY 0 of all consumers of an empty channel": (
        facts(nsqd("a", consumed(client(0), depth=0))),
        [("warning", "consumers", "RDY 0", "")],
    ),
    "messages that are deferred": (
        facts(nsqd("a", events(channel(deferred=4, client_count=1)))),
        [("warning", "channel", "deferred 4", "stats --clients")],
    ),
    "messages that are deferred, and nobody takes them": (
        facts(nsqd("a", events(channel(deferred=4)))),
        [("warning", "channel", "0 consumers", "tail --topic events --channel c -n 5 --peek")],
    ),
    "a backlog without consumers in another channel of the topic": (
        facts(nsqd("a", events(channel("d", depth=3), channel("e", client_count=1))), channel=""),
        [("warning", "channel", "channel d of topic events: depth 3", "--channel d -n 5 --peek")],
    ),
    "consumers on one nsqd and messages on another": (
        facts(
            nsqd("a", events(channel(client_count=1))),
            nsqd("b", events(channel(depth=2, in_flight=1))),
        ),
        [("warning", "channel", "none on nsqd b:4150 with 3 messages", "channel c")],
    ),
    "an empty channel beside others": (
        facts(
            nsqd("a", events(USED, channel("d", depth=3, client_count=1), channel("e", depth=2))),
            nsqd("b", events(USED, channel("d", depth=1, client_count=1))),
        ),
        [("warning", "depth", "4 in channel d, 2 in channel e", "--channel d")],
    ),
    "a topic without channels that keeps messages": (
        facts(nsqd("a", events(depth=1)), nsqd("b", WELL), channel=""),
        [("warning", "depth", "1 message waits in topic events", "channel create events NAME")],
    ),
    "a topic whose channel is elsewhere": (
        facts(nsqd("a", events(depth=2)), nsqd("b", WELL), channel="d"),
        [("warning", "depth", "2 messages wait in topic events on nsqds where", "create d: ")],
    ),
    "a topic without channels whose channel is to be ephemeral": (
        facts(nsqd("a", events(depth=2)), channel="d#ephemeral"),
        [("warning", "depth", "no nsqd has channel d#ephemeral", "a channel that stays: ")],
    ),
    "an ephemeral channel that is not consumed": (
        facts(nsqd("a", WELL), channel="d#ephemeral"),
        [("warning", "channel", "has no channel d#ephemeral", "exists only while")],
    ),
    "a consumer that has everything": (
        facts(nsqd("a", consumed(client(9, 4), client(1), depth=0, in_flight=4))),
        [("warning", "consumers", "(host, agent/1) holds all 4 messages", "stats --clients")],
    ),
    "more consumers than can be named": (
        facts(nsqd("a", consumed(*(client(2, port=n) for n in range(7)), client(0, port=9)))),
        [
            ("warning", "consumers", "10.0.0.1:9 (host, agent/1) has RDY 0", "in backoff"),
            ("warning", "consumers", "10.0.0.1:4 (host, agent/1) with RDY 2 and 2 more", ""),
        ],
    ),
    "a consumer that finishes nothing until its messages time out": (
        facts(
            nsqd("a", consumed(client(2, 2)), later=consumed(client(2, 2), timeout_count=1)),
        ),
        [("error", "consumers", "while 1 message of the channel timed out", "it hangs")],
    ),
    "no messages in flight at all": (
        facts(nsqd("a", WELL), max_in_flight=0),
        [("error", "max-in-flight", "is 0", "1 or more")],
    ),
    "a share that an nsqd does not allow": (
        facts(
            nsqd("a", WELL, features=Features(max_rdy_count=9)), nsqd("b", WELL), max_in_flight=20
        ),
        [("warning", "max-in-flight", "nsqd a:4150 allows RDY 9 at most", "--max-in-flight 18")],
    ),
    "a share that an nsqd just allows": (
        facts(nsqd("a", WELL, features=Features(max_rdy_count=10)), max_in_flight=10),
        [],
    ),
    "a given name that cannot be resolved": (
        facts(nsqd("wbe1", features=None, tcp_error=UNKNOWN, http_error=refused("wbe1"))),
        [("error", "tcp", "'wbe1'", "check the name")],
    ),
    "an nsqd whose HTTP is dead, so that nobody knows whether it has the topic": (
        facts(nsqd("a", http_error=refused("a"), **AT_A), lookupds=[listing("a")]),
        [("warning", "http", "a:4151", "")],
    ),
    "nsqlookupds that answer without any nsqd": (
        facts(lookupds=[lookupd(), DEAD]),
        [
            ("warning", "nsqlookupd", "m:4161", ""),
            ("error", "listing", "that answers", "--lookupd-tcp-address"),
        ],
    ),
    "swapped ports of a listed nsqd": (
        facts(nsqd("a", WELL, tcp_port=7, **SWAPPED, **AT_A), lookupds=[listing("a")]),
        [("error", "tcp", "a:4150", "start that nsqd with --broadcast-tcp-port=7")],
    ),
    "the HTTP port of an nsqlookupd that an nsqd has registered": (
        facts(nsqd("a", WELL, is_lookupd=True, **SWAPPED, **AT_A), lookupds=[listing("a")]),
        [("error", "tcp", "HTTP port of an nsqlookupd", "--broadcast-tcp-port=PORT")],
    ),
    "the TCP port of an nsqlookupd that an nsqd has registered": (
        facts(nsqd("a", WELL, **{**SWAPPED, "tcp_speaks": "nsqlookupd"}, **AT_A), lookupds=HAVING),
        [("error", "tcp", "TCP port of an nsqlookupd", "--broadcast-tcp-port=PORT")],
    ),
    "an HTTP port registered as the TCP port, and another one as the HTTP port": (
        facts(nsqd("a", WELL, tcp_port=7, http=AT, **SWAPPED, **AT_A), lookupds=HAVING),
        [("error", "tcp", "a:4150", "--broadcast-tcp-port=7 --broadcast-http-port=4150")],
    ),
    "an HTTP port given, of an nsqd that does not tell its TCP port": (
        facts(nsqd("a", WELL, **SWAPPED)),
        [("error", "tcp", "a:4150 is its HTTP port", "give its TCP port, 4150")],
    ),
    "HTTPS with a certificate of an unknown CA": (
        facts(
            nsqd("a", tcp=None, features=None, http_error=DISTRUSTED, http_speaks="tls"),
            lookupds=[lookupd(error=DISTRUSTED, speaks="tls")],
        ),
        [
            ("error", "nsqlookupd", "a:4151: unknown certificate", "--tls-root-ca-file"),
            ("error", "http", "a:4151: unknown certificate", "--tls-root-ca-file"),
        ],
    ),
    "a TCP port registered as the HTTP port": (
        facts(nsqd("a", http_error=DEAF, http_speaks="nsqd", **AT_A), lookupds=HAVING),
        [("error", "http", "a:4151 is its TCP port", "--broadcast-http-port=PORT")],
    ),
    "a broadcast name that cannot be resolved": (
        facts(
            nsqd("wbe1", features=None, tcp_error=UNKNOWN, http_error=refused("wbe1"), **AT_W),
            lookupds=[listing("wbe1")],
        ),
        [("error", "tcp", "it registered from 172.17.0.5:33000", "--broadcast-address=ADDR")],
    ),
    "a listed nsqd that is dead": (
        facts(
            nsqd("a", features=None, tcp_error=AWAY, http_error=refused("a"), **AT_A),
            lookupds=HAVING,
        ),
        [("error", "tcp", "b:4150: connection refused", "check its --broadcast-address")],
    ),
    "an nsqd that requires a secret": (
        facts(nsqd("a", WELL, features=None, tcp_error=NO_SECRET)),
        [("error", "auth", "a:4150 requires AUTH", "add --auth-secret-file")],
    ),
    "an nsqd that does not know the secret": (
        facts(nsqd("a", WELL, features=None, tcp_error=NO_SECRET), has_secret=True),
        [("error", "auth", "a:4150: E_AUTH_FAILED", "AUTH server knows")],
    ),
    "an nsqd whose secret is for other topics": (
        facts(nsqd("a", WELL, features=None, tcp_error=NOT_HERE), has_secret=True),
        [("error", "auth", "a:4150: E_UNAUTHORIZED", "accepts for this topic")],
    ),
    "an nsqd that does not compress": (
        facts(nsqd("a", WELL), compression="snappy"),
        [("warning", "tcp", "nsqd a:4150 does not offer --snappy", "with --snappy")],
    ),
    "an nsqd whose certificate is unknown": (
        facts(nsqd("a", WELL, features=None, tcp_error=UNTRUSTED)),
        [("error", "tls", "a:4150: unknown certificate", "--tls-root-ca-file")],
    ),
    "a clock that is behind, and one that is hardly": (
        facts(nsqd("a", WELL, skew=5.0), lookupds=[listing("a", skew=-90.4)]),
        [("warning", "clock", "nsqlookupd l:4161 is 90 s behind", "clocks")],
    ),
    "one of two nsqlookupds requires TLS": (
        facts(nsqd("a", WELL), lookupds=[*HAVING, lookupd("m", error=DEAF, speaks="tls")]),
        [("warning", "nsqlookupd", "m:4161 requires TLS", "https://m:4161")],
    ),
    "one of two nsqlookupds does not list the nsqd": (
        facts(nsqd("a", WELL), lookupds=[*HAVING, lookupd("m")]),
        [("warning", "listing", "m:4161 does not list topic events on a:4150", "")],
    ),
    "a topic whose nsqd is gone": (
        facts(lookupds=[lookupd(topics=frozenset({"events"}), nodes=(producer("z"),))]),
        [("error", "listing", "no nsqd has it", "pub --topic events")],
    ),
    "a topic whose name is another one": (
        facts(lookupds=[lookupd(topics=frozenset({"event"}), nodes=(producer("z"),))]),
        [("error", "listing", "did you mean 'event'?", "lookup topics")],
    ),
    "addresses that cannot be used": (
        facts(lookupds=[lookupd(left_out={"nsqd x": True, "nsqd y": False})]),
        [
            ("error", "listing", "address: nsqd x", "--broadcast-address"),
            ("warning", "listing", "address: nsqd y", "--broadcast-address"),
        ],
    ),
    "who had no time to be asked": (
        facts(nsqd("a", features=None, tcp_error=LATE, http_error=LATE)),
        [("error", "tcp", "", "--timeout")],
    ),
}


def known(host: str, *topics: TopicStats, later: Iterable[TopicStats] = (), **values: Any) -> Any:
    """An nsqd of a whole cluster, with all its topics, at two looks."""
    looks = [NsqdStats("1.3.0", "OK", 5, tuple(some)) for some in (topics, later or topics)]
    names = [each.name for each in topics]
    known = {"stats": looks[0], "later_stats": looks[1], "topics": frozenset(names)}
    return nsqd(host, **{"producer": producer(host, *names), **known, **values})


def whole(*nsqds: NsqdFacts, lookupds: Iterable[LookupdFacts] = (), **values: Any) -> Facts:
    """A cluster of these nsqds, all listed by nsqlookupd l unless others are given."""
    nodes = tuple(each.producer for each in nsqds if each.producer)
    topics = frozenset(name for each in nodes for name in each.topics)
    lists = lookupds or (lookupd(nodes=nodes, topics=topics),)
    return facts(*nsqds, lookupds=lists, channel="", whole=True, at=NOW, **values)


GUIDES = Path(__file__).parents[2] / "nsqtools/cli/docs/guides"
LISTING_A = lookupd(nodes=(producer("a", "events"),), topics=frozenset({"events"}))
HIDDEN = replace(producer("a", "events"), tombstones=(True,))
ELSEWHERE = replace(WELL, name="other")
FLEETING = replace(WELL, name="fleeting#ephemeral")
DEEP = events(channel("c", depth=900, client_count=1))
SPILLED = events(channel("c", depth=2000, backend_depth=1000, client_count=1))
UNUSED, GONE = events(channel("c")), refused("a")

# As above, for a whole cluster
WHOLE: dict[str, tuple[Facts, list[tuple[str, str, str, str]]]] = {
    "all is well": (
        whole(known("a", WELL), known("b", WELL, FLEETING, producer=producer("b", "events"))),
        [],
    ),
    "a clock that is ahead": (
        whole(known("a", WELL), known("b", WELL, skew=90.4)),
        [("warning", "clock", "b:4150 is 90 s ahead", "clocks")],
    ),
    "an nsqlookupd of another version": (
        whole(known("a", WELL), lookupds=[replace(LISTING_A, version="1.2.1")]),
        [("warning", "version", "1.2.1 (nsqlookupd l:4161), 1.3.0 (nsqd a:4150)", "upgrade")],
    ),
    "a disk that is full": (
        whole(known("a", WELL, stats=NsqdStats("1.3.0", "NOK - no space", 5, (WELL,)))),
        [("error", "health", "NOK - no space", "disk")],
    ),
    "a certificate that ends soon, and one that does not": (
        whole(
            known("a", WELL, offers_tls=True, expiry=NOW + 29 * DAY),
            known("b", WELL, offers_tls=True, expiry=NOW + 31 * DAY),
        ),
        [("warning", "tls", "nsqd a:4150 expires on 2001-10-08", "renew")],
    ),
    "TLS on one of three": (
        whole(
            known("a", WELL, offers_tls=True),
            *(known(host, WELL, offers_tls=False) for host in "bd"),
        ),
        [("warning", "tls", "nsqd a:4150 offers TLS, and nsqd b:4150, d:4150 do not", "start")],
    ),
    "TLS here, and there nobody knows": (
        whole(known("a", WELL, offers_tls=True), known("b", WELL)),
        [],
    ),
    "messages that grow on a disk": (
        whole(known("a", DEEP, later=[SPILLED])),
        [("warning", "disk", "nsqd a:4150 grew by 1000 to 1000", "consumers")],
    ),
    "nearly all messages on one nsqd": (
        whole(known("a", DEEP), known("b", events(channel("c", depth=100, client_count=1)))),
        [("warning", "imbalance", "nsqd a:4150 has 900 of 1000", "stats --once --clients")],
    ),
    "most messages on one nsqd": (
        whole(known("a", DEEP), known("b", events(channel("c", depth=101, client_count=1)))),
        [],
    ),
    "a topic nobody uses": (
        whole(known("a", UNUSED), known("b", UNUSED)),
        [("note", "idle", "no consumer of channel c, no message", "topic prune --topic events")],
    ),
    "a topic nobody consumes but somebody publishes": (
        whole(known("a", UNUSED, later=[replace(UNUSED, message_count=2)])),
        [],
    ),
    "a topic that may be used on an nsqd that is silent": (
        whole(known("a", UNUSED), nsqd("b", producer=producer("b", "events"), http_error=GONE)),
        [("warning", "http", "depths, pauses and consumers are unknown", "")],
    ),
    "what a silent nsqd may have is not to be deleted": (
        whole(
            known("a", UNUSED),
            nsqd("b", producer=producer("b", "third"), http_error=GONE),
            lookupds=[
                replace(LISTING_A, topics=frozenset({"events", "third", "gone"})),
                lookupd("m", nodes=(producer("a", "events"), producer("b", "third"))),
            ],
        ),
        [
            ("warning", "http", "depths, pauses and consumers are unknown", ""),
            ("warning", "listing", "does not list nsqd b:4150", ""),
            ("warning", "listing", "l:4161 has topic gone, but no nsqd", "start it"),
            ("note", "idle", "topic events", "--dry-run"),
        ],
    ),
    "what nsqds of a silent nsqlookupd may have is not to be deleted": (
        whole(
            *(known("a", UNUSED), known("b", producer=None)),
            lookupds=[replace(LISTING_A, topics=frozenset({"events", "gone"})), DEAD],
        ),
        [
            ("warning", "nsqlookupd", "m:4161: connection refused", "start it"),
            ("warning", "listing", "b:4150 is registered with no nsqlookupd that answers", ""),
        ],
    ),
    "messages that time out, and not quite enough": (
        whole(
            known(
                "a",
                events(
                    channel("c", client_count=1, message_count=200, timeout_count=10),
                    channel("d", client_count=1, message_count=201, timeout_count=10),
                ),
            )
        ),
        [("warning", "timeouts", "channel c of topic events: 10 timeouts of 200", "--msg-timeout")],
    ),
    "messages that are requeued, and not quite enough": (
        whole(
            known(
                "a",
                events(
                    channel("c", client_count=1, message_count=50, requeue_count=10),
                    channel("d", client_count=1, message_count=4, requeue_count=9),
                ),
            )
        ),
        [("warning", "requeues", "channel c of topic events: 10 requeues of 50", "stats")],
    ),
    "one of two consumers is stuck": (whole(known("a", consumed(client(2, 2), client(2, 1)))), []),
    "a consumer that is full, and no message waits": (
        whole(known("a", consumed(client(2, 2), depth=0))),
        [],
    ),
    "all consumers are stuck": (
        whole(known("a", consumed(client(2, 2), client(0, port=2)))),
        [("warning", "consumers", "depth 5, 2 consumers, and none has settled", "stats --clients")],
    ),
    "all consumers are stuck, and messages time out": (
        whole(
            known(
                "a",
                consumed(client(2, 2), timeout_count=3),
                later=[consumed(client(2, 2), timeout_count=5)],
            )
        ),
        [("error", "consumers", "while 2 messages timed out", "whether they hang")],
    ),
    "a consumer that takes ten seconds for a message": (
        whole(known("a", consumed(replace(client(2, 2), finish_count=9, connect_ts=NOW_S - 90)))),
        [],
    ),
    "the same, on an nsqd whose clock is a year ahead": (
        whole(
            known(
                "a",
                consumed(replace(client(2, 2), finish_count=9, connect_ts=NOW_S + YEAR - 90)),
                time=(NOW_S + YEAR, NOW_S + YEAR + 1),
            )
        ),
        [],
    ),
    "a consumer that was fast, on an nsqd whose clock is a year behind": (
        whole(
            known(
                "a",
                consumed(replace(client(2, 2), finish_count=900, connect_ts=NOW_S - YEAR - 90)),
                time=(NOW_S - YEAR, NOW_S - YEAR + 1),
            )
        ),
        [("warning", "consumers", "none has settled", "whether they hang")],
    ),
    "a slow consumer whose messages time out": (
        whole(
            known(
                "a",
                consumed(
                    replace(client(2, 2), finish_count=9, connect_ts=NOW_S - 90), timeout_count=1
                ),
            )
        ),
        [("warning", "consumers", "none has settled", "whether they hang")],
    ),
    "a consumer that was fast": (
        whole(known("a", consumed(replace(client(2, 2), finish_count=900, connect_ts=NOW_S - 90)))),
        [("warning", "consumers", "none has settled", "whether they hang")],
    ),
    "a topic not listed, and one not there": (
        whole(known("a", WELL, ELSEWHERE, producer=producer("a", "third", "events"))),
        [
            ("error", "listing", "nsqd a:4150 has topic other", "restart"),
            ("warning", "listing", "lists topic third at a:4150", "--broadcast-address"),
        ],
    ),
    "a tombstone of a topic that is deleted": (
        whole(known("a", producer=HIDDEN), lookupds=[lookupd(nodes=(HIDDEN,))]),
        [("warning", "tombstone", "at all nsqlookupds: consumers do not find it", "expires")],
    ),
    "nsqlookupds that list other nsqds and other topics": (
        whole(
            *(known("a", WELL, ELSEWHERE), known("b", WELL)),
            lookupds=[
                lookupd(nodes=(producer("a", "events", "other"), producer("b", "events"))),
                lookupd("m", nodes=(producer("a", "events"),)),
            ],
        ),
        [
            ("warning", "listing", "nsqlookupd m:4161 does not list nsqd b:4150", ""),
            ("warning", "listing", "does not list topic other of nsqd a:4150", "restart"),
        ],
    ),
    "two containers with one broadcast address": (
        whole(
            known("a", WELL),
            lookupds=[lookupd(nodes=(producer("a", "events"), producer("a", hostname="other")))],
        ),
        [("error", "listing", "one broadcast address a:4150: a (172.17.0.5), other (", "its own")],
    ),
    "an nsqd that two nsqlookupds see at different addresses": (
        whole(
            known("a", WELL),
            lookupds=[
                lookupd(nodes=(producer("a", "events"),)),
                lookupd("m", nodes=(replace(producer("a", "events"), remote_address="10.1:1"),)),
            ],
        ),
        [],
    ),
    "an nsqd that has just been restarted": (
        whole(
            known("a", WELL),
            lookupds=[lookupd(nodes=(producer("a", "events"), producer("a", "events")))],
        ),
        [],
    ),
    "a topic, with a channel, that only an nsqlookupd knows": (
        whole(
            known("a", WELL),
            lookupds=[
                lookupd(
                    nodes=(producer("a", "events"),),
                    topics=frozenset({"events", "gone"}),
                    stale_channels=(("events", "old"), ("gone", "c")),
                )
            ],
        ),
        [
            ("warning", "listing", "has topic gone", "start it"),
            ("warning", "listing", "channel old of topic events", "start it"),
        ],
    ),
    "no nsqd is registered": (
        whole(known("a", WELL, producer=None), lookupds=[lookupd()]),
        [
            ("error", "listing", "no nsqd is registered", "--lookupd-tcp-address"),
            ("warning", "listing", "nsqd a:4150 is registered with no nsqlookupd", ""),
        ],
    ),
}


@pytest.mark.parametrize(
    ("found", "expected"), [*CASES.values(), *WHOLE.values()], ids=[*CASES, *WHOLE]
)
def test_each_fault_is_found_with_its_culprit(
    found: Facts, expected: list[tuple[str, str, str, str]]
) -> None:
    findings = not_ok(found)
    assert [(each.severity, each.check) for each in findings] == [each[:2] for each in expected]
    for finding, (_, _, culprit, fix) in zip(findings, expected, strict=True):
        assert culprit in finding.text
        assert fix in finding.fix


def test_a_single_poll_shows_who_is_silent_or_unwell_and_what_nobody_takes() -> None:
    names = "a:4151", "b:4151"
    nodes = {name: Node(name, f"http://{name}", AT) for name in names}
    stats = {names[0]: NsqdStats("1.3.0", "NOK - no space", 5, (events(channel(depth=1)),))}
    lookupds = {"m:4161": refused("m", 4161)}
    found = list(findings_of(Snapshot(0.0, stats, {names[1]: refused("b")}, nodes, lookupds)))
    assert [each.code for each in found] == ["NSQ001", "NSQ003", "NSQ004", "NSQ036"]
    assert [each.server for each in found[:3]] == ["m:4161", "b:4151", "a:4150"]


def test_what_nsqd_refuses_is_not_mended_by_starting_it() -> None:
    words = "sample rate (100) is invalid"
    text = f"nsqd refused the connection: E_BAD_BODY IDENTIFY {words}"
    refusal = RefusedError(text, Address("a", 4150))
    (finding,) = not_ok(facts(nsqd("a", WELL, tcp_error=refusal, features=None)))
    assert words in finding.text
    assert "start" not in finding.fix


def test_each_finding_on_a_cluster_is_about_something_else() -> None:
    one = lookupd(nodes=(producer("a", "events", "other"), producer("b"), producer("c")))
    other = lookupd("m", nodes=(producer("a"),), left_out={"nsqd x": True, "nsqd y": False})
    found = not_ok(whole(known("a"), lookupds=[one, other]))
    assert [each.code for each in found].count("NSQ020") == 2
    assert [each.code for each in found].count("NSQ023") == 4
    assert len({each.about for each in found}) == len(found)


T = "--nsqd-tcp-address a:4150"
BESIDE = events(channel("c"), channel("d", depth=2))
WAITING = events(channel("c", depth=1))
PASSING = "c#ephemeral"


@pytest.mark.parametrize(
    ("topic", "channel", "listed", "command"),
    [
        (None, "c", False, f"pub --topic events {T} hello"),
        (events(published=0), "c", False, f"pub --topic events {T} hello"),
        (events(channel("d")), "c", False, f"channel create events c {A}"),
        (events(channel("d")), "c", True, f"channel create events c {L}"),
        (BESIDE, "c", False, f"tail --topic events --channel d -n 5 --peek {T}"),
        (BESIDE, "c", True, f"tail --topic events --channel d -n 5 --peek {L}"),
        (consumed(client(0)), "c", True, f"stats --clients --topic events --channel c {L}"),
        (consumed(client(9)), "c", False, f"tail --topic events {T}"),
        (*(WAITING, "c", False), f"tail --topic events --channel c -n 5 --peek {T}"),
        (events(depth=3), PASSING, False, f"channel create events NAME {A}"),
        (
            *(events(channel(PASSING, paused=True)), PASSING, True),
            f"channel unpause events '{PASSING}' {A}",
        ),
    ],
)
def test_what_to_do_is_a_command_with_the_servers_in_question(
    topic: TopicStats | None, channel: str, listed: bool, command: str
) -> None:
    at = nsqd("a", topic, **(AT_A if listed else {}))
    found = facts(at, channel=channel, lookupds=[listing("a")] if listed else [])
    fixes = [each.fix for each in diagnose(found) if each.fix]
    assert any(f" nsqtools {command};" in f" {fix};" for fix in fixes), fixes
    assert CliRunner().invoke(cli, [*shlex.split(command), "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("topic", "command"),
    [
        (UNUSED, f"topic prune --topic events --watch-for 10m --dry-run {L} {A}"),
        (events(depth=1), f"channel create events NAME {L} {A}"),
        (WAITING, f"tail --topic events --channel c -n 5 --peek {T}"),
        (consumed(client(0)), f"stats --clients --topic events --channel c {L} {A}"),
    ],
)
def test_what_to_do_reaches_an_nsqd_that_no_nsqlookupd_lists(
    topic: TopicStats, command: str
) -> None:
    found = whole(known("a", topic, producer=None), lookupds=[lookupd(nodes=(producer("b"),))])
    fixes = [each.fix for each in diagnose(found)]
    assert any(f" nsqtools {command};" in f" {fix};" for fix in fixes), fixes


HARMLESS = {"stats", "lookup", "pub", "doctor", "config", "verify"}
"""Commands that take, finish and discard no message."""


def commands(text: str) -> list[list[str]]:
    """The command lines to paste in a text: up to a semicolon, or as code."""
    found = re.findall(r"(?:^|[ `])nsqtools ([^;`]*)", text)
    return [shlex.split(each) for each in found]


def loses(words: list[str]) -> bool:
    """Whether a command line may finish, take or discard messages of somebody else."""
    match words:
        case ["topic" | "channel", "create" | "pause" | "unpause", *_]:
            return False
        case ["tail", *rest]:  # nsqd deletes an ephemeral channel after a look
            return "--channel" in rest and ("--peek" not in rest or "#ephemeral" in "".join(rest))
        case [("topic" | "channel"), _, *rest]:
            return "--dry-run" not in rest
        case [name, *_]:
            return name not in HARMLESS
    return True


def test_no_remedy_offers_a_line_to_paste_that_loses_messages() -> None:
    known = [each for each, _ in (*CASES.values(), *WHOLE.values())]
    topics = None, events(published=0), replace(WELL, paused=True), events(channel(paused=True))
    known += [facts(nsqd("a", topic)) for topic in topics]
    known.append(facts(nsqd("a", events(USED, channel(PASSING, depth=1)))))
    known.append(facts(nsqd("a", events(channel(PASSING, depth=1))), channel=PASSING))
    found = [finding for each in known for finding in diagnose(each)]
    assert {each.code for each in found} - {""} == set(BY_CODE)
    lines = [words for each in found for words in commands(f"{each.text} {each.fix}")]
    assert len(lines) > 30
    assert [each for each in lines if loses(each)] == []
    for each in found:  # what deletes comes last
        _, *after = re.split("delet", each.fix)
        assert all(" nsqtools " not in part for part in after), each.fix


@pytest.mark.parametrize("name", ["checks", "troubleshooting"])
def test_no_guide_offers_a_line_to_paste_that_loses_messages(name: str) -> None:
    lines = commands(" ".join((GUIDES / f"{name}.md").read_text().split()))
    assert lines
    assert [each for each in lines if loses(each)] == []
