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
from tests.support.raw import Raw
from tests.support.reporting import fill, lookup, registered
from tests.support.servers import at

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


def test_what_is_well_is_said_to_be_and_nothing_is_changed(
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
    before = nsqd.stats()["topics"]
    alone = doctor.ask("--channel", "new", "--nsqd-http-address", str(nsqd.http))
    assert str(nsqd.tcp) in alone.said("ok", "tcp")[0]
    assert nsqd.stats()["topics"] == before  # looking changes nothing


def test_an_nsqd_that_hangs(doctor: Doctor, filled: Nsqd) -> None:
    os.kill(filled.pid, signal.SIGSTOP)
    try:
        found = doctor.ask(*http(filled), "--timeout", "1600ms", code=3)
    finally:
        os.kill(filled.pid, signal.SIGCONT)
    (text,) = found.said("failure", "tcp")
    assert "no response within 1s" in text


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


def test_the_fix_for_a_topic_without_a_channel_is_a_command_that_makes_one(
    doctor: Doctor, nsqd: Nsqd
) -> None:
    nsqd.create(doctor.topic)
    doctor.only("warning", "topic", *http(nsqd))  # nor was anything published
    nsqd.publish(doctor.topic, [b"x"] * 4)
    text, fix = doctor.only("warning", "depth", *http(nsqd))
    assert "4 messages" in text
    fix = fix.replace(" NAME ", " c ")
    assert doctor.cli(*fix.partition(": nsqtools ")[2].split()).code == 0
    eventually(lambda: nsqd.channel(doctor.topic, "c")["depth"] == 4)


def test_a_consumer_that_is_in_the_way(doctor: Doctor, filled: Nsqd) -> None:
    with consumer(filled, doctor.topic, 100) as other:
        eventually(lambda: filled.channel(doctor.topic, "c")["in_flight_count"] == 3)
        text, _ = doctor.only("warning", "consumers", "--channel", "c", *http(filled))
    assert f"consumer {other.address} (greedy.test, raw/1) holds all 3 messages" in text


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
    assert "--tls-v1" in fix
    trusting = ("--tls-v1", "--tls-root-ca-file", str(certificates.ca))
    assert doctor.ask(*http(nsqd), *trusting).not_ok == []
    text, _ = doctor.only("failure", "tls", *http(nsqd), "--tls-v1")
    assert str(nsqd.tcp) in text


@pytest.mark.nsqd_only("the sandbox has no HTTPS")
def test_an_nsqd_that_speaks_only_https(
    doctor: Doctor, make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd("-tls-required=true", *certificates.server.nsqd_args())
    known = (*at(nsqd), "--tls-v1", "--tls-root-ca-file", str(certificates.ca))
    assert doctor.cli("pub", "--topic", doctor.topic, *known, "x").code == 0
    for given in (nsqd.http, nsqd.https):
        text, fix = doctor.only("warning", "http", *known, "--nsqd-http-address", str(given))
        assert str(given) in text
        assert fix == f"use --nsqd-http-address https://{nsqd.https}"
    followed = doctor.ask(*known, *fix.split()[1:])
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
        assert "--auth-secret-file FILE" in fix
        assert ("E_AUTH_FAILED" in text) == bool(given)
    assert doctor.ask(*http(nsqd), *secret(tmp_path, "open sesame")).not_ok == []


def test_what_nsqd_does_not_offer_is_told(doctor: Doctor, make_nsqd: MakeNsqd) -> None:
    nsqd = make_nsqd("-max-rdy-count=100", "-snappy=false")
    fill(nsqd, doctor.topic)
    text, fix = doctor.only("warning", "max-in-flight", *http(nsqd), "--max-in-flight", "500")
    assert str(nsqd.tcp) in text
    assert "--max-in-flight 100" in fix
    text, _ = doctor.only("warning", "tcp", "--snappy", *http(nsqd), "--max-in-flight", "100")
    assert str(nsqd.tcp) in text
