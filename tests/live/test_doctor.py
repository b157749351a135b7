"""``doctor`` as a process: set-ups that are broken, each told by the line that is meant for it.

The lines are many because there is much that can be broken.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.names import Address
from tests.support.eventually import eventually
from tests.support.raw import Raw, RawLookupd
from tests.support.servers import at, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.authd import Authd
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd, Nsqlookupd
    from tests.support.tls import Certificates


def by(*lookupds: Nsqlookupd) -> tuple[str, ...]:
    return tuple(word for each in lookupds for word in ("--lookupd-http-address", str(each.http)))


@dataclass(slots=True)
class Doctor:
    """Asks for a topic; what is found are pairs of text and fix by level and check."""

    cli: Cli
    topic: str

    def ask(self, *args: str, code: int = 0) -> Found:
        ended = self.cli("doctor", "--topic", self.topic, "--json", *args)
        assert ended.code == code, (ended.stdout.decode(), ended.stderr)
        assert ended.stderr == ""
        told = json.loads(ended.stdout)
        assert told["topic"] == self.topic
        return Found(told["findings"])


class Found(list[dict[str, str]]):
    def said(self, level: str, check: str) -> list[str]:
        return [each["text"] for each in self if (each["level"], each["check"]) == (level, check)]

    def only(self, level: str, check: str) -> tuple[str, str]:
        """Text and fix of the only finding that is not ok."""
        (found,) = self.not_ok
        assert (found["level"], found["check"]) == (level, check), found
        return found["text"], found["fix"]

    @property
    def not_ok(self) -> list[dict[str, str]]:
        """But for a backlog that nobody consumes, which most of these set-ups leave."""
        return [each for each in self if each["level"] != "ok" and not _is_backlog(each)]


def _is_backlog(found: dict[str, str]) -> bool:
    return found["check"] == "channel" and found["text"].endswith(" 0 consumers")


@pytest.fixture
def doctor(nsqtools_cli: Cli, topic: str) -> Doctor:
    return Doctor(nsqtools_cli, topic)


def filled(nsqd: Nsqd, topic: str, channel: str = "c", count: int = 3) -> None:
    """A topic with messages in a channel."""
    nsqd.create(topic, channel)
    nsqd.publish(topic, [b"x"] * count)
    eventually(lambda: nsqd.channel(topic, channel)["depth"] == count)


def listed(topic: str, *lookupds: Nsqlookupd) -> None:
    """Wait until all of them know where the topic is."""
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: lookupd.lookup(topic))  # type: ignore[misc]


def test_what_is_well_is_said_to_be(
    doctor: Doctor, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupds = [make_nsqlookupd(), make_nsqlookupd()]
    nsqd = make_nsqd(lookupds=lookupds)
    filled(nsqd, doctor.topic)
    listed(doctor.topic, *lookupds)
    found = doctor.ask("--channel", "c", *by(*lookupds))
    assert found.not_ok == []
    assert {each["check"] for each in found} == {
        "nsqlookupd",
        "listing",
        "tcp",
        "clock",
        "topic",
        "channel",
    }
    fixed = doctor.ask("--channel", "c", *at(nsqd), "--nsqd-http-address", str(nsqd.http))
    assert fixed.not_ok == []
    assert fixed.said("warning", "channel") == [
        "channel c: depth 3, in flight 0, deferred 0, 0 consumers"
    ]
    nsqd.empty(doctor.topic, "c")
    assert len(doctor.ask("--channel", "c", *by(*lookupds)).said("ok", "channel")) == 1


def test_lines_are_for_people_and_say_what_to_do(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    filled(nsqd, topic)
    nsqd.pause(topic)
    address = str(nsqd.http)
    ended = nsqtools_cli("doctor", "--topic", topic, *at(nsqd), "--nsqd-http-address", address)
    assert ended.code == 1
    lines = ended.stdout.decode().splitlines()
    assert lines[0].startswith(f"ok       nsqd {nsqd.tcp} answers, version ")
    bad = lines.index(
        f"failure  topic {topic} is paused on nsqd {nsqd.tcp}: its channels get nothing"
    )
    fix = lines[bad + 1].removeprefix("         fix: ")
    assert fix == f"nsqtools topic unpause {topic} --nsqd-http-address {address}"
    assert nsqtools_cli(*fix.split()[1:]).code == 0
    assert not nsqd.topic(topic)["paused"]


def test_a_broadcast_address_that_nobody_can_resolve(
    doctor: Doctor, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = make_nsqd("-broadcast-address=5f2c.invalid", lookupds=[nsqlookupd])
    filled(nsqd, doctor.topic)
    listed(doctor.topic, nsqlookupd)
    text, fix = doctor.ask(*by(nsqlookupd), code=1).only("failure", "tcp")
    assert text.startswith(
        f"nsqd 5f2c.invalid:{nsqd.tcp.port}: cannot resolve '5f2c.invalid', its broadcast address; "
        "it registered from 127.0.0.1:"
    )
    assert "--broadcast-address" in fix


def test_an_nsqd_that_is_listed_and_dead(
    doctor: Doctor, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    filled(nsqd, doctor.topic)
    dead = free_port()
    with RawLookupd(nsqlookupd.tcp) as register:
        identity = {
            "version": "1.3.0",
            "broadcast_address": "127.0.0.1",
            "hostname": "gone",
            "tcp_port": dead,
            "http_port": free_port(),
        }
        register.ask("IDENTIFY", json.dumps(identity).encode())
        assert register.ask(f"REGISTER {doctor.topic}") == b"OK"
        eventually(lambda: len(nsqlookupd.lookup(doctor.topic)) == 2)
        found = doctor.ask(*by(nsqlookupd), code=1)
    text, _ = found.only("failure", "tcp")
    assert text == f"nsqd 127.0.0.1:{dead}: connection refused"
    assert len(found.said("ok", "tcp")) == 1


def test_the_http_port_given_for_tcp(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)
    found = doctor.ask("--nsqd-tcp-address", str(nsqd.http), code=1)
    assert found.only("failure", "tcp") == (
        f"nsqd {nsqd.http} is its HTTP port",
        f"--nsqd-tcp-address {nsqd.tcp}",
    )


def test_the_tcp_port_given_for_http(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)
    text, fix = doctor.ask(*at(nsqd), "--nsqd-http-address", str(nsqd.tcp), code=1).only(
        "failure", "http"
    )
    assert text == f"nsqd {nsqd.tcp} is its TCP port, not HTTP"
    assert "--nsqd-http-address" in fix


def test_the_tcp_port_of_nsqlookupd_given_for_http(doctor: Doctor, nsqlookupd: Nsqlookupd) -> None:
    text, fix = doctor.ask("--lookupd-http-address", str(nsqlookupd.tcp), code=1).only(
        "failure", "nsqlookupd"
    )
    assert text == f"nsqlookupd {nsqlookupd.tcp} is its TCP port, where nsqds register"
    assert "--lookupd-http-address 127.0.0.1:4161" in fix


def test_an_nsqd_given_for_nsqlookupd_and_the_reverse(
    doctor: Doctor, nsqd: Nsqd, nsqlookupd: Nsqlookupd
) -> None:
    text, _ = doctor.ask("--lookupd-http-address", str(nsqd.http), code=1).only(
        "failure", "nsqlookupd"
    )
    assert text == f"nsqlookupd {nsqd.http} is the HTTP port of an nsqd"
    text, fix = doctor.ask("--lookupd-http-address", str(nsqd.tcp), code=1).only(
        "failure", "nsqlookupd"
    )
    assert text == f"nsqlookupd {nsqd.tcp} is the TCP port of an nsqd"
    assert fix == f"--nsqd-tcp-address {nsqd.tcp}"
    found = doctor.ask("--nsqd-tcp-address", str(nsqlookupd.tcp), code=1)
    assert found.said("failure", "tcp") == [
        f"nsqd {nsqlookupd.tcp} is the TCP port of an nsqlookupd"
    ]
    found = doctor.ask("--nsqd-tcp-address", str(nsqlookupd.http), code=1)
    assert found.only("failure", "tcp") == (
        f"nsqd {nsqlookupd.http} is the HTTP port of an nsqlookupd",
        f"--lookupd-http-address {nsqlookupd.http}",
    )


def test_a_channel_that_is_paused(
    doctor: Doctor, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqds = [make_nsqd(lookupds=[nsqlookupd]) for _ in range(2)]
    for nsqd in nsqds:
        filled(nsqd, doctor.topic)
    eventually(lambda: len(nsqlookupd.lookup(doctor.topic)) == 2)
    nsqds[1].pause(doctor.topic, "c")
    text, fix = doctor.ask("--channel", "c", *by(nsqlookupd), code=1).only(
        "failure", "channel-paused"
    )
    assert text == f"channel c is paused on nsqd {nsqds[1].tcp}: nothing is delivered from it"
    assert fix == (f"nsqtools channel unpause {doctor.topic} c --nsqd-http-address {nsqds[1].http}")
    found = doctor.ask(*by(nsqlookupd))
    assert found.only("warning", "channel-paused") == (text, fix)


def test_a_topic_with_a_tombstone(
    doctor: Doctor, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupds = [make_nsqlookupd(), make_nsqlookupd()]
    nsqd = make_nsqd(lookupds=lookupds)
    filled(nsqd, doctor.topic)
    listed(doctor.topic, *lookupds)
    node = str(nsqd.http)
    lookupds[0].request("POST", "/topic/tombstone", topic=doctor.topic, node=node)
    text, _ = doctor.ask(*by(*lookupds)).only("warning", "tombstone")
    where = f"topic {doctor.topic} of nsqd {nsqd.tcp} is tombstoned at"
    assert text == f"{where} {lookupds[0].http}"
    lookupds[1].request("POST", "/topic/tombstone", topic=doctor.topic, node=node)
    text, _ = doctor.ask(*by(*lookupds), code=1).only("failure", "tombstone")
    assert text == f"{where} all nsqlookupds: consumers do not find it"


def test_a_topic_that_nsqlookupd_has_forgotten(
    doctor: Doctor, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    filled(nsqd, doctor.topic)
    listed(doctor.topic, nsqlookupd)
    nsqlookupd.request("POST", "/topic/delete", topic=doctor.topic)
    text, fix = doctor.ask(*by(nsqlookupd), code=1).only("failure", "listing")
    assert text == f"nsqd {nsqd.tcp} has topic {doctor.topic}, but no nsqlookupd lists it there"
    assert "restart" in fix


def test_an_nsqd_that_never_registered(
    doctor: Doctor, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = make_nsqd()
    filled(nsqd, doctor.topic)
    found = doctor.ask(*by(nsqlookupd), "--nsqd-http-address", str(nsqd.http), code=1)
    text, fix = found.only("failure", "listing")
    assert text == f"nsqd {nsqd.tcp} has topic {doctor.topic}, but no nsqlookupd lists it there"
    assert "--lookupd-tcp-address" in fix


def test_an_nsqlookupd_that_not_all_nsqds_know(
    doctor: Doctor, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupds = [make_nsqlookupd(), make_nsqlookupd()]
    nsqd = make_nsqd(lookupds=lookupds[:1])
    filled(nsqd, doctor.topic)
    listed(doctor.topic, lookupds[0])
    text, _ = doctor.ask(*by(*lookupds)).only("warning", "listing")
    assert text == (
        f"nsqlookupd {lookupds[1].http} does not list topic {doctor.topic} on {nsqd.tcp}"
    )


def test_a_topic_that_nobody_has_is_told_with_the_nearest(
    doctor: Doctor, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    name = f"{doctor.topic}s"
    filled(nsqd, name)
    listed(name, nsqlookupd)
    text, _ = doctor.ask(*by(nsqlookupd), code=1).only("failure", "listing")
    assert text == f"no nsqlookupd lists topic {doctor.topic}; did you mean {name!r}?"
    http = ("--nsqd-http-address", str(nsqd.http))
    text, _ = doctor.ask(*at(nsqd), *http, code=1).only("failure", "topic")
    assert text == f"no nsqd has topic {doctor.topic}; did you mean {name!r}?"


def test_a_topic_that_was_made_and_never_published_to(
    doctor: Doctor, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    other = f"other.{doctor.topic}"
    filled(make_nsqd(lookupds=[nsqlookupd]), other)
    listed(other, nsqlookupd)
    nsqlookupd.request("POST", "/topic/create", topic=doctor.topic)
    text, _ = doctor.ask(*by(nsqlookupd), code=1).only("failure", "listing")
    assert text == f"nsqlookupd knows topic {doctor.topic}, but no nsqd has it"


def http(nsqd: Nsqd) -> tuple[str, ...]:
    return *at(nsqd), "--nsqd-http-address", str(nsqd.http)


def test_messages_in_another_channel(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic, "archive", count=7)
    nsqd.create(doctor.topic, "c")
    text, fix = doctor.ask("--channel", "c", *http(nsqd)).only("warning", "depth")
    assert text == (
        "channel c holds nothing, but other channels of the topic do: 7 in channel archive"
    )
    assert fix.endswith(
        f": nsqtools tail --topic {doctor.topic} --channel archive --nsqd-tcp-address {nsqd.tcp}"
    )


def test_a_channel_that_is_not_there(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic, "archive")
    text, _ = doctor.ask("--channel", "archve", *http(nsqd)).only("warning", "channel")
    assert text == f"topic {doctor.topic} has no channel archve; did you mean 'archive'?"


def test_messages_in_a_topic_without_a_channel(doctor: Doctor, nsqd: Nsqd) -> None:
    nsqd.create(doctor.topic)
    nsqd.publish(doctor.topic, [b"x"] * 4)
    text, fix = doctor.ask(*http(nsqd)).only("warning", "depth")
    assert text == f"4 messages wait in topic {doctor.topic}, which has no channel there"
    fix = fix.replace(" NAME ", " c ")
    assert doctor.cli(*fix.partition(": nsqtools ")[2].split()).code == 0
    eventually(lambda: nsqd.channel(doctor.topic, "c")["depth"] == 4)


def test_a_topic_that_nothing_was_published_to(doctor: Doctor, nsqd: Nsqd) -> None:
    nsqd.create(doctor.topic, "c")
    text, _ = doctor.ask("--channel", "c", *http(nsqd)).only("warning", "topic")
    assert text == f"nothing was published to topic {doctor.topic} since its nsqds started"


def consumer(nsqd: Nsqd, topic: str, ready: int) -> Raw:
    raw = Raw(nsqd.tcp)
    raw.identify(client_id="greedy", hostname="greedy.test", user_agent="raw/1")
    return raw.subscribe(topic, "c", ready)


def test_a_consumer_that_takes_all(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)
    with consumer(nsqd, doctor.topic, 100) as other:
        eventually(lambda: nsqd.channel(doctor.topic, "c")["in_flight_count"] == 3)
        text, fix = doctor.ask("--channel", "c", *http(nsqd)).only("warning", "consumers")
        assert text == (
            f"consumer {other.address} (greedy.test, raw/1) holds all 3 messages of channel c in "
            "flight, with RDY 100: others get nothing"
        )
        assert "channel of your own" in fix


def test_a_channel_that_is_shared(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic, "c", count=1)
    with consumer(nsqd, doctor.topic, 10) as other:
        message = other.message()
        other.send(f"FIN {message.id}")
        other.settle()
        text, _ = doctor.ask("--channel", "c", *http(nsqd)).only("warning", "consumers")
        assert text == (
            f"channel c is shared, each message goes to one: consumer {other.address} "
            "(greedy.test, raw/1) with RDY 10"
        )


def test_a_consumer_that_is_stuck_with_rdy_0(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)
    with consumer(nsqd, doctor.topic, 0) as other:
        other.settle()
        text, _ = doctor.ask("--channel", "c", *http(nsqd), code=1).only("failure", "consumers")
        assert text == (
            f"consumer {other.address} (greedy.test, raw/1) has RDY 0 on nsqd {nsqd.tcp}: "
            "it takes nothing"
        )


def test_a_consumer_that_finishes_nothing(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)
    with consumer(nsqd, doctor.topic, 2) as other:
        eventually(lambda: nsqd.channel(doctor.topic, "c")["in_flight_count"] == 2)
        text, _ = doctor.ask("--channel", "c", *http(nsqd)).only("warning", "consumers")
        assert text == (
            f"consumer {other.address} (greedy.test, raw/1) holds 2 of RDY 2 in flight on "
            f"nsqd {nsqd.tcp} and finished none in 1 s"
        )


def test_a_consumer_that_lets_messages_time_out(doctor: Doctor, make_nsqd: MakeNsqd) -> None:
    nsqd = make_nsqd("-msg-timeout=200ms")
    filled(nsqd, doctor.topic)
    with consumer(nsqd, doctor.topic, 2) as other:
        # nsqd looks after a new channel's timeouts from its next five seconds on.
        eventually(lambda: nsqd.channel(doctor.topic, "c")["timeout_count"] > 0, 20.0)
        text, _ = doctor.ask("--channel", "c", *http(nsqd), code=1).only("failure", "consumers")
        assert text.startswith(f"consumer {other.address} (greedy.test, raw/1) holds 2 of RDY 2")
        assert text.endswith("of the channel timed out: it gets no more")


def test_an_nsqd_that_requires_tls(
    doctor: Doctor, make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd("-tls-required=tcp-https", *certificates.server.nsqd_args())
    filled(nsqd, doctor.topic)
    text, fix = doctor.ask(*http(nsqd), code=1).only("failure", "tls")
    assert text == f"nsqd {nsqd.tcp} requires TLS"
    assert fix.startswith("--tls-v1")
    trusting = ("--tls-v1", "--tls-root-ca-file", str(certificates.ca))
    assert doctor.ask(*http(nsqd), *trusting).not_ok == []
    text, _ = doctor.ask(*http(nsqd), "--tls-v1", code=1).only("failure", "tls")
    assert str(nsqd.tcp) in text


def test_an_nsqd_that_speaks_only_https(
    doctor: Doctor, make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd("-tls-required=true", *certificates.server.nsqd_args())
    trusting = ("--tls-root-ca-file", str(certificates.ca))
    assert doctor.cli("pub", "--topic", doctor.topic, *at(nsqd), *trusting, "x").code == 0
    found = doctor.ask(*http(nsqd), *trusting)
    text, fix = found.only("warning", "http")
    assert text == (
        f"nsqd {nsqd.http} answers only over https: its depths, pauses and consumers are unknown"
    )
    assert fix == f"--nsqd-http-address https://{nsqd.https}"
    followed = doctor.ask(*at(nsqd), *trusting, *fix.split())
    assert followed.said("ok", "topic") == [f"topic {doctor.topic}: 1 message published so far"]


def test_the_https_port_given_for_http(
    doctor: Doctor, make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd(*certificates.server.nsqd_args())
    filled(nsqd, doctor.topic)
    given = ("--nsqd-http-address", str(nsqd.https))
    text, fix = doctor.ask(*at(nsqd), *given).only("warning", "http")
    assert text.startswith(f"nsqd {nsqd.https} wants TLS")
    assert fix == f"--nsqd-http-address https://{nsqd.https}"


def test_an_nsqd_that_hangs(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        found = doctor.ask(*http(nsqd), "--http-client-request-timeout", "200ms", code=3)
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)
    assert found.said("failure", "tcp") == [f"nsqd {nsqd.tcp}: no answer within 200ms"]


def test_the_http_address_of_an_nsqd_alone(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)
    found = doctor.ask("--nsqd-http-address", str(nsqd.http))
    assert found.not_ok == []
    assert str(nsqd.tcp) in found.said("ok", "tcp")[0]


def test_an_nsqd_without_tls(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)
    text, _ = doctor.ask(*http(nsqd), "--tls-v1", code=1).only("failure", "tls")
    assert text == f"nsqd {nsqd.tcp}: nsqd does not offer TLS (start it with --tls-cert)"


def test_an_nsqd_that_requires_auth(
    doctor: Doctor, make_nsqd: MakeNsqd, authd: Authd, tmp_path: Path
) -> None:
    authd.grant("open sesame")
    nsqd = make_nsqd(*authd.nsqd_args())
    filled(nsqd, doctor.topic)
    assert doctor.ask(*http(nsqd), code=1).only("failure", "auth") == (
        f"nsqd {nsqd.tcp} requires AUTH",
        "--auth-secret-file FILE",
    )
    secret = tmp_path / "secret"
    secret.write_text("barley\n")
    secret.chmod(0o600)
    given = ("--auth-secret-file", str(secret))
    text, fix = doctor.ask(*http(nsqd), *given, code=1).only("failure", "auth")
    assert text.startswith(f"nsqd {nsqd.tcp}: nsqd refused the AUTH secret: E_AUTH_FAILED")
    assert fix.startswith("--auth-secret-file FILE with a secret")
    secret.write_text("open sesame\n")
    assert doctor.ask(*http(nsqd), *given).not_ok == []


def test_more_in_flight_than_nsqd_allows(doctor: Doctor, make_nsqd: MakeNsqd) -> None:
    nsqd = make_nsqd("-max-rdy-count=100")
    filled(nsqd, doctor.topic)
    text, fix = doctor.ask(*http(nsqd), "--max-in-flight", "500").only("warning", "max-in-flight")
    assert text == (
        f"nsqd {nsqd.tcp} allows RDY 100, less than its share of --max-in-flight 500: "
        "it gets no more"
    )
    assert fix == "--max-in-flight 100, or nsqd --max-rdy-count 500"
    assert doctor.ask(*http(nsqd), "--max-in-flight", "100").not_ok == []
    doctor.ask(*http(nsqd), "--max-in-flight", "0", code=1).only("failure", "max-in-flight")


def test_one_dead_nsqlookupd_of_two(
    doctor: Doctor, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd
) -> None:
    lookupds = [make_nsqlookupd(), make_nsqlookupd()]
    nsqd = make_nsqd(lookupds=lookupds)
    filled(nsqd, doctor.topic)
    listed(doctor.topic, *lookupds)
    lookupds[0].kill()
    text, _ = doctor.ask(*by(*lookupds)).only("warning", "nsqlookupd")
    assert text == f"nsqlookupd {lookupds[0].http}: connection refused"


def test_nothing_that_can_be_reached(doctor: Doctor) -> None:
    dead = Address("127.0.0.1", free_port())
    found = doctor.ask("--nsqd-tcp-address", str(dead), code=3)
    assert found.said("failure", "tcp") == [f"nsqd {dead}: connection refused"]
    found = doctor.ask("--lookupd-http-address", str(dead), code=3)
    assert found.only("failure", "nsqlookupd")[0] == f"nsqlookupd {dead}: connection refused"


def test_looking_changes_nothing(doctor: Doctor, nsqd: Nsqd) -> None:
    filled(nsqd, doctor.topic)

    def state() -> Any:
        told = nsqd.stats()
        return told["topics"]

    before = state()
    doctor.ask("--channel", "new", *http(nsqd))
    doctor.ask("--channel", "c", *http(nsqd))
    assert state() == before


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_a_compression_that_nsqd_declines_is_a_warning(
    doctor: Doctor, make_nsqd: MakeNsqd, codec: str
) -> None:
    nsqd = make_nsqd(f"-{codec}=false")
    filled(nsqd, doctor.topic)
    where = (*at(nsqd), "--nsqd-http-address", str(nsqd.http))
    text, _ = doctor.ask(f"--{codec}", *where).only("warning", "tcp")
    assert f"--{codec}" in text
    assert doctor.ask(*where).not_ok == []


def test_a_secret_that_permits_nothing_is_not_told_as_refused(
    doctor: Doctor, make_nsqd: MakeNsqd, authd: Authd, tmp_path: Path
) -> None:
    authd.grant("elsewhere", topic="elsewhere")
    nsqd = make_nsqd(*authd.nsqd_args())
    nsqd.create(doctor.topic, "c")
    secret = tmp_path / "secret"
    secret.write_text("elsewhere")
    secret.chmod(0o600)
    where = ("--auth-secret-file", str(secret), *at(nsqd))
    tail = doctor.cli("tail", "--topic", doctor.topic, "--channel", "c", *where)
    assert tail.code == 3
    assert "E_UNAUTHORIZED" in tail.stderr
    assert "refused" not in tail.stderr
