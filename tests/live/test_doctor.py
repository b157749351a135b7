"""``doctor`` as a process: set-ups that are broken, each told by the finding that is meant for it.

What is found in which facts is tested in tests/engine/test_diagnosis.py; these are the facts.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.raw import Raw, RawLookupd
from tests.support.reporting import fill, lookup, registered
from tests.support.servers import at, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.authd import Authd
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
    from tests.support.tls import Certificates

    MakeListed = Callable[..., Nsqd]


class Found(list[dict[str, str]]):
    def said(self, level: str, check: str) -> list[str]:
        return [each["text"] for each in self if (each["level"], each["check"]) == (level, check)]

    @property
    def not_ok(self) -> list[dict[str, str]]:
        """But for a backlog that nobody consumes, which most of these set-ups leave."""
        return [each for each in self if each["level"] != "ok" and not _is_backlog(each)]


def _is_backlog(found: dict[str, str]) -> bool:
    return found["check"] == "channel" and found["text"].endswith(" 0 consumers")


@dataclass(slots=True)
class Doctor:
    """Asks for a topic."""

    cli: Cli
    topic: str

    def ask(self, *args: str, code: int = 0) -> Found:
        ended = self.cli("doctor", "--topic", self.topic, "--json", *args)
        assert (ended.code, ended.stderr) == (code, ""), ended.stdout.decode()
        told = json.loads(ended.stdout)
        assert told["topic"] == self.topic
        return Found(told["findings"])

    def only(self, level: str, check: str, *args: str) -> tuple[str, str]:
        """Text and fix of the only finding that is not ok."""
        (found,) = self.ask(*args, code=1 if level == "failure" else 0).not_ok
        assert (found["level"], found["check"]) == (level, check), found
        return found["text"], found["fix"]


@pytest.fixture
def doctor(nsqtools_cli: Cli, topic: str) -> Doctor:
    return Doctor(nsqtools_cli, topic)


@pytest.fixture
def listed(make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str) -> MakeListed:
    """Makes an nsqd with messages of the topic in channel c, and has it registered."""

    def make(*args: str, name: str = topic, lookupds: Sequence[Nsqlookupd] = ()) -> Nsqd:
        nsqd = make_nsqd(*args, lookupds=lookupds or (nsqlookupd,))
        before = len(nsqlookupd.lookup(name))
        fill(nsqd, name)
        registered(name, lookupds or (nsqlookupd,), before + 1)
        return nsqd

    return make


@pytest.fixture
def filled(nsqd: Nsqd, topic: str) -> Nsqd:
    """The nsqd, with messages of the topic in channel c."""
    fill(nsqd, topic)
    return nsqd


def http(nsqd: Nsqd) -> tuple[str, ...]:
    return *at(nsqd), "--nsqd-http-address", str(nsqd.http)


def secret(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "secret"
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return "--auth-secret-file", str(path)


def test_what_is_well_is_said_to_be(
    doctor: Doctor, listed: MakeListed, lookupds: list[Nsqlookupd]
) -> None:
    nsqd = listed(lookupds=lookupds)
    found = doctor.ask("--channel", "c", *lookup(lookupds))
    assert found.not_ok == []
    checks = {"nsqlookupd", "listing", "tcp", "clock", "topic", "channel"}
    assert {each["check"] for each in found} == checks
    fixed = doctor.ask("--channel", "c", *http(nsqd))
    assert fixed.not_ok == []
    (backlog,) = fixed.said("warning", "channel")
    assert "depth 3," in backlog
    nsqd.empty(doctor.topic, "c")
    assert len(doctor.ask("--channel", "c", *lookup(lookupds)).said("ok", "channel")) == 1
    alone = doctor.ask("--nsqd-http-address", str(nsqd.http))
    assert alone.not_ok == []
    assert str(nsqd.tcp) in alone.said("ok", "tcp")[0]


def test_looking_changes_nothing(doctor: Doctor, filled: Nsqd) -> None:
    before = filled.stats()["topics"]
    doctor.ask("--channel", "new", *http(filled))
    doctor.ask("--channel", "c", *http(filled))
    assert filled.stats()["topics"] == before


def test_a_fix_is_a_command_that_mends_it(doctor: Doctor, filled: Nsqd) -> None:
    filled.pause(doctor.topic)
    ended = doctor.cli("doctor", "--topic", doctor.topic, *http(filled))
    assert ended.code == 1
    lines = ended.stdout.decode().splitlines()
    (bad,) = (n for n, line in enumerate(lines) if line.startswith("failure "))
    fix = lines[bad + 1].removeprefix("         fix: nsqtools ")
    assert doctor.cli(*fix.split()).code == 0
    assert not filled.topic(doctor.topic)["paused"]


def test_a_broadcast_address_that_nobody_can_resolve(
    doctor: Doctor, listed: MakeListed, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = listed("-broadcast-address=5f2c.invalid")
    text, fix = doctor.only("failure", "tcp", *lookup([nsqlookupd]))
    assert f"nsqd 5f2c.invalid:{nsqd.tcp.port}" in text
    assert "it registered from 127.0.0.1:" in text
    assert "--broadcast-address" in fix


def test_an_nsqd_that_is_listed_and_dead(
    doctor: Doctor, listed: MakeListed, nsqlookupd: Nsqlookupd
) -> None:
    listed()
    identity = {
        "version": "1.3.0",
        "broadcast_address": "127.0.0.1",
        "hostname": "gone",
        "tcp_port": (dead := free_port()),
        "http_port": free_port(),
    }
    with RawLookupd(nsqlookupd.tcp) as register:
        register.ask("IDENTIFY", json.dumps(identity).encode())
        assert register.ask(f"REGISTER {doctor.topic}") == b"OK"
        registered(doctor.topic, [nsqlookupd], 2)
        text, _ = doctor.only("failure", "tcp", *lookup([nsqlookupd]))
    assert f"127.0.0.1:{dead}" in text


def test_one_port_given_for_another(doctor: Doctor, filled: Nsqd, nsqlookupd: Nsqlookupd) -> None:
    nsqd, lookupd = filled, nsqlookupd
    for given, check, whose, remedy in (
        (("--nsqd-tcp-address", nsqd.http), "tcp", "its HTTP", f"--nsqd-tcp-address {nsqd.tcp}"),
        (("--nsqd-http-address", nsqd.tcp), "http", "its TCP", "--nsqd-http-address"),
        (("--nsqd-tcp-address", lookupd.http), "tcp", "an nsqlookupd", f" {lookupd.http}"),
        (("--nsqd-tcp-address", lookupd.tcp), "tcp", "an nsqlookupd", "--lookupd-http-address"),
        (
            ("--lookupd-http-address", lookupd.tcp),
            "nsqlookupd",
            "its TCP",
            "--lookupd-http-address",
        ),
        (("--lookupd-http-address", nsqd.http), "nsqlookupd", "an nsqd", "--lookupd-http-address"),
        (("--lookupd-http-address", nsqd.tcp), "nsqlookupd", "an nsqd", f"{nsqd.tcp}"),
    ):
        flag, address = given
        known = at(nsqd) if flag == "--nsqd-http-address" else ()
        found = doctor.ask(*known, flag, str(address), code=1)
        ((text, fix),) = (
            (each["text"], each["fix"])
            for each in found
            if (each["level"], each["check"]) == ("failure", check)
        )
        assert f"{address} is " in text
        assert whose in text
        assert remedy in fix


def test_an_nsqd_that_hangs(doctor: Doctor, filled: Nsqd) -> None:
    os.kill(filled.pid, signal.SIGSTOP)
    try:
        found = doctor.ask(*http(filled), "--http-client-request-timeout", "200ms", code=3)
    finally:
        os.kill(filled.pid, signal.SIGCONT)
    (text,) = found.said("failure", "tcp")
    assert "200ms" in text


def test_nothing_that_can_be_reached(doctor: Doctor) -> None:
    dead = f"127.0.0.1:{free_port()}"
    for flag, check in (("--nsqd-tcp-address", "tcp"), ("--lookupd-http-address", "nsqlookupd")):
        (text,) = doctor.ask(flag, dead, code=3).said("failure", check)
        assert dead in text


def test_one_dead_nsqlookupd_of_two(
    doctor: Doctor, listed: MakeListed, lookupds: list[Nsqlookupd]
) -> None:
    listed(lookupds=lookupds)
    lookupds[0].kill()
    text, _ = doctor.only("warning", "nsqlookupd", *lookup(lookupds))
    assert str(lookupds[0].http) in text


def test_a_topic_with_a_tombstone(
    doctor: Doctor, listed: MakeListed, lookupds: list[Nsqlookupd]
) -> None:
    nsqd = listed(lookupds=lookupds)
    for lookupd, level in zip(lookupds, ("warning", "failure"), strict=True):
        node = str(nsqd.http)
        lookupd.request("POST", "/topic/tombstone", topic=doctor.topic, node=node)
        text, _ = doctor.only(level, "tombstone", *lookup(lookupds))
        assert str(nsqd.tcp) in text
        assert (str(lookupd.http) in text) == (level == "warning")


def test_a_topic_that_nsqlookupd_does_not_list_where_it_is(
    doctor: Doctor, listed: MakeListed, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    """It was forgotten there, or that nsqd never registered."""
    stranger = make_nsqd()
    fill(stranger, doctor.topic)
    given = (*lookup([nsqlookupd]), "--nsqd-http-address", str(stranger.http))
    text, fix = doctor.only("failure", "listing", *given)
    assert str(stranger.tcp) in text
    assert "--lookupd-tcp-address" in fix
    nsqd = listed()
    nsqlookupd.request("POST", "/topic/delete", topic=doctor.topic)
    text, fix = doctor.only("failure", "listing", *lookup([nsqlookupd]))
    assert str(nsqd.tcp) in text
    assert "restart" in fix


def test_an_nsqlookupd_that_not_all_nsqds_know(
    doctor: Doctor, listed: MakeListed, lookupds: list[Nsqlookupd]
) -> None:
    nsqd = listed(lookupds=lookupds[:1])
    text, _ = doctor.only("warning", "listing", *lookup(lookupds))
    assert str(lookupds[1].http) in text
    assert str(nsqd.tcp) in text


def test_a_topic_that_no_nsqd_has_is_told_with_the_nearest(
    doctor: Doctor, listed: MakeListed, nsqlookupd: Nsqlookupd
) -> None:
    nsqd = listed(name=f"{doctor.topic}s")
    for check, where in (("listing", lookup([nsqlookupd])), ("topic", http(nsqd))):
        text, _ = doctor.only("failure", check, *where)
        assert f"'{doctor.topic}s'" in text
    nsqlookupd.request("POST", "/topic/create", topic=doctor.topic)
    text, _ = doctor.only("failure", "listing", *lookup([nsqlookupd]))
    assert "nsqlookupd knows topic" in text


def test_a_channel_that_is_paused(
    doctor: Doctor, listed: MakeListed, nsqlookupd: Nsqlookupd
) -> None:
    """A failure where it is asked for."""
    nsqds = [listed(), listed()]
    nsqds[1].pause(doctor.topic, "c")
    named = doctor.only("failure", "channel-paused", "--channel", "c", *lookup([nsqlookupd]))
    assert named == doctor.only("warning", "channel-paused", *lookup([nsqlookupd]))
    assert str(nsqds[1].tcp) in named[0]
    assert named[1].endswith(f" {doctor.topic} c --nsqd-http-address {nsqds[1].http}")


def test_messages_in_another_channel(doctor: Doctor, filled: Nsqd) -> None:
    filled.create(doctor.topic, "empty")
    text, fix = doctor.only("warning", "depth", "--channel", "empty", *http(filled))
    assert "3 in channel c" in text
    assert fix.endswith(f" --channel c --nsqd-tcp-address {filled.tcp}")
    text, _ = doctor.only("warning", "channel", "--channel", "emty", *http(filled))
    assert "'empty'?" in text


def test_messages_in_a_topic_without_a_channel(doctor: Doctor, nsqd: Nsqd) -> None:
    nsqd.create(doctor.topic)
    doctor.only("warning", "topic", *http(nsqd))  # nor was anything published
    nsqd.publish(doctor.topic, [b"x"] * 4)
    text, fix = doctor.only("warning", "depth", *http(nsqd))
    assert "4 messages" in text
    fix = fix.replace(" NAME ", " c ")
    assert doctor.cli(*fix.partition(": nsqtools ")[2].split()).code == 0
    eventually(lambda: nsqd.channel(doctor.topic, "c")["depth"] == 4)


@pytest.mark.parametrize(
    ("ready", "level", "words"),
    [
        (0, "failure", "has RDY 0 on nsqd"),
        (2, "warning", "holds 2 of RDY 2"),
        (100, "warning", "holds all 3 messages"),
    ],
)
def test_a_consumer_that_is_in_the_way(
    doctor: Doctor, filled: Nsqd, ready: int, level: str, words: str
) -> None:
    with consumer(filled, doctor.topic, ready) as other:
        other.settle()
        held = min(ready, 3)
        eventually(lambda: filled.channel(doctor.topic, "c")["in_flight_count"] == held)
        text, _ = doctor.only(level, "consumers", "--channel", "c", *http(filled))
    assert f"consumer {other.address} (greedy.test, raw/1) {words}" in text


def test_a_channel_that_is_shared(doctor: Doctor, nsqd: Nsqd) -> None:
    fill(nsqd, doctor.topic, count=1)
    with consumer(nsqd, doctor.topic, 10) as other:
        other.send(f"FIN {other.message().id}")
        other.settle()
        text, _ = doctor.only("warning", "consumers", "--channel", "c", *http(nsqd))
    assert "is shared" in text
    assert str(other.address) in text


def test_a_consumer_that_lets_messages_time_out(doctor: Doctor, make_nsqd: MakeNsqd) -> None:
    nsqd = make_nsqd("-msg-timeout=200ms")
    nsqd.create(doctor.topic, "c")
    nsqd.restart()  # a channel that is new it looks after only from its next five seconds on
    fill(nsqd, doctor.topic)
    with consumer(nsqd, doctor.topic, 2) as other:
        eventually(lambda: nsqd.channel(doctor.topic, "c")["timeout_count"] > 0)
        text, _ = doctor.only("failure", "consumers", "--channel", "c", *http(nsqd))
    assert str(other.address) in text
    assert "timed out" in text


def consumer(nsqd: Nsqd, topic: str, ready: int) -> Raw:
    raw = Raw(nsqd.tcp)
    raw.identify(client_id="greedy", hostname="greedy.test", user_agent="raw/1")
    return raw.subscribe(topic, "c", ready)


def test_an_nsqd_that_requires_tls(
    doctor: Doctor, make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd("-tls-required=tcp-https", *certificates.server.nsqd_args())
    fill(nsqd, doctor.topic)
    text, fix = doctor.only("failure", "tls", *http(nsqd))
    assert str(nsqd.tcp) in text
    assert fix.startswith("--tls-v1")
    trusting = ("--tls-v1", "--tls-root-ca-file", str(certificates.ca))
    assert doctor.ask(*http(nsqd), *trusting).not_ok == []
    text, _ = doctor.only("failure", "tls", *http(nsqd), "--tls-v1")
    assert str(nsqd.tcp) in text


def test_an_nsqd_that_speaks_only_https(
    doctor: Doctor, make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd("-tls-required=true", *certificates.server.nsqd_args())
    known = (*at(nsqd), "--tls-root-ca-file", str(certificates.ca))
    assert doctor.cli("pub", "--topic", doctor.topic, *known, "x").code == 0
    for given in (nsqd.http, nsqd.https):
        text, fix = doctor.only("warning", "http", *known, "--nsqd-http-address", str(given))
        assert str(given) in text
        assert fix == f"--nsqd-http-address https://{nsqd.https}"
    followed = doctor.ask(*known, *fix.split())
    assert len(followed.said("ok", "topic")) == 1


def test_an_nsqd_that_requires_auth(
    doctor: Doctor, make_nsqd: MakeNsqd, authd: Authd, tmp_path: Path
) -> None:
    authd.grant("open sesame")
    nsqd = make_nsqd(*authd.nsqd_args())
    fill(nsqd, doctor.topic)
    for given in ((), secret(tmp_path, "barley")):
        text, fix = doctor.only("failure", "auth", *http(nsqd), *given)
        assert str(nsqd.tcp) in text
        assert fix.startswith("--auth-secret-file FILE")
        assert ("E_AUTH_FAILED" in text) == bool(given)
    assert doctor.ask(*http(nsqd), *secret(tmp_path, "open sesame")).not_ok == []


def test_more_in_flight_than_nsqd_allows(doctor: Doctor, make_nsqd: MakeNsqd) -> None:
    nsqd = make_nsqd("-max-rdy-count=100")
    fill(nsqd, doctor.topic)
    text, fix = doctor.only("warning", "max-in-flight", *http(nsqd), "--max-in-flight", "500")
    assert str(nsqd.tcp) in text
    assert fix == "--max-in-flight 100, or nsqd --max-rdy-count 500"
    assert doctor.ask(*http(nsqd), "--max-in-flight", "100").not_ok == []
    doctor.only("failure", "max-in-flight", *http(nsqd), "--max-in-flight", "0")


@pytest.mark.parametrize(
    ("option", "level", "check"),
    [("snappy", "warning", "tcp"), ("deflate", "warning", "tcp"), ("tls-v1", "failure", "tls")],
)
def test_what_nsqd_does_not_offer(
    doctor: Doctor, make_nsqd: MakeNsqd, option: str, level: str, check: str
) -> None:
    nsqd = make_nsqd("-snappy=false", "-deflate=false")
    fill(nsqd, doctor.topic)
    text, _ = doctor.only(level, check, f"--{option}", *http(nsqd))
    assert str(nsqd.tcp) in text
    assert doctor.ask(*http(nsqd)).not_ok == []
