"""``doctor`` as a process: set-ups that are broken, each told by the finding that is meant for it.

What is found in which facts is tested in tests/engine/test_diagnosis.py; these are the facts.
"""

import json
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.authd import Authd
from tests.support.binaries import give_up
from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.raw import Raw
from tests.support.servers import (
    MakeNsqd,
    Nsqlookupd,
    at,
    at_both,
    fill,
    free_port,
    http,
    lookup,
    registered,
)
from tests.support.tls import Certificates


@dataclass(slots=True)
class Doctor:
    """Asks for a topic."""

    cli: Cli
    topic: str

    def ask(self, *args: str, code: int | None = None) -> list[dict[str, str]]:
        """The findings; the exit code is that of the worst unless given."""
        ended = self.cli("doctor", "--topic", self.topic, "--json", *args)
        findings: list[dict[str, str]] = json.loads(ended.stdout)["findings"]
        found = {each["severity"] for each in findings}
        worst = 1 if "error" in found else 4 if "warning" in found else 0
        assert (ended.code, ended.stderr) == (worst if code is None else code, ""), findings
        return findings

    def wrong(self, *args: str, code: int | None = None) -> list[dict[str, str]]:
        """But for a backlog that nobody consumes, which most of these set-ups leave."""
        return [
            each
            for each in self.ask(*args, code=code)
            if each["level"] != "ok" and not each["text"].endswith(" 0 consumers")
        ]

    def only(self, level: str, check: str, *args: str) -> tuple[str, str]:
        """Text and fix of the only finding that is not ok."""
        (found,) = self.wrong(*args)
        assert (found["level"], found["check"]) == (level, check), found
        return found["text"], found["fix"]


@pytest.fixture
def doctor(nsqtools_cli: Cli, topic: str) -> Doctor:
    return Doctor(nsqtools_cli, topic)


def test_what_is_well_is_said_to_be_and_a_tombstone_is_found(
    doctor: Doctor, make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd]
) -> None:
    nsqd, listed = make_nsqd(lookupds=lookupds), lookup(lookupds)
    fill(nsqd, doctor.topic)
    registered(doctor.topic, lookupds)
    before = nsqd.stats()["topics"]
    found = doctor.ask("--channel", "c", *listed)
    (backlog,) = (each for each in found if each["level"] != "ok")
    assert (backlog["check"], "depth 3," in backlog["text"]) == ("channel", True)
    checks = {"nsqlookupd", "listing", "tcp", "clock", "topic", "channel"}
    assert {each["check"] for each in found} == checks
    alone = doctor.ask("--channel", "new", *http([nsqd]))
    assert str(nsqd.tcp) in next(each["text"] for each in alone if each["check"] == "tcp")
    assert nsqd.stats()["topics"] == before  # looking changes nothing
    nsqd.empty(doctor.topic, "c")
    assert {each["level"] for each in doctor.ask("--channel", "c", *listed)} == {"ok"}
    for lookupd, level in zip(lookupds, ("warning", "failure"), strict=True):
        lookupd.request("POST", "/topic/tombstone", topic=doctor.topic, node=str(nsqd.http))
        text, _ = doctor.only(level, "tombstone", *listed)
        assert str(nsqd.tcp) in text
        assert (str(lookupd.http) in text) == (level == "warning")


def test_a_topic_that_nsqlookupds_do_not_list_where_it_is(
    doctor: Doctor, make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd]
) -> None:
    """Its nsqd never registered, did so at one of them only, or is known, and the topic is not."""
    nsqd, stranger = make_nsqd(lookupds=lookupds[:1]), make_nsqd()
    for each in (nsqd, stranger):
        fill(each, doctor.topic)
    registered(doctor.topic, lookupds[:1])
    given = (*lookup(lookupds[:1]), *http([stranger]))
    text, fix = doctor.only("failure", "listing", *given)
    assert str(stranger.tcp) in text
    assert "--lookupd-tcp-address" in fix
    text, _ = doctor.only("warning", "listing", *lookup(lookupds))
    assert str(lookupds[1].http) in text
    assert str(nsqd.tcp) in text
    lookupds[0].request("POST", "/topic/delete", topic=doctor.topic)
    text, fix = doctor.only("failure", "listing", *lookup(lookupds[:1]))
    assert str(nsqd.tcp) in text
    assert "restart" in fix


def test_an_nsqd_without_a_channel_with_a_greedy_consumer_and_that_hangs(
    doctor: Doctor, make_nsqd: MakeNsqd
) -> None:
    nsqd = make_nsqd("-max-rdy-count=100", "-snappy=false")
    nsqd.create(doctor.topic)
    doctor.only("warning", "topic", *at_both(nsqd), "--max-in-flight", "9")  # nor messages
    nsqd.publish(doctor.topic, [b"x"] * 4)
    text, fix = doctor.only("warning", "depth", *at_both(nsqd), "--max-in-flight", "9")
    assert "4 messages" in text
    fix = fix.replace(" NAME ", " c ")
    assert doctor.cli(*fix.partition(": nsqtools ")[2].split()).code == 0
    eventually(lambda: nsqd.channel(doctor.topic, "c")["depth"] == 4)
    text, fix = doctor.only("warning", "max-in-flight", *at_both(nsqd), "--max-in-flight", "500")
    assert str(nsqd.tcp) in text
    assert "--max-in-flight 100" in fix
    few = (*at_both(nsqd), "--max-in-flight", "100")
    text, _ = doctor.only("warning", "tcp", "--snappy", *few)
    assert str(nsqd.tcp) in text
    with Raw(nsqd.tcp) as raw:
        raw.identify(client_id="greedy", hostname="greedy.test", user_agent="raw/1")
        raw.subscribe(doctor.topic, "c", 100)
        eventually(lambda: nsqd.channel(doctor.topic, "c")["in_flight_count"] == 4)
        text, _ = doctor.only("warning", "consumers", "--channel", "c", *few)
    assert f"consumer {raw.address} (greedy.test, raw/1) holds all 4 messages" in text
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        found = doctor.wrong(*at_both(nsqd), "--timeout", "1600ms", code=3)
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)
    assert "no response within 1s" in next(each["text"] for each in found if each["check"] == "tcp")


def test_an_nsqd_that_requires_tls(
    doctor: Doctor, make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd("-tls-required=tcp-https", *certificates.server.nsqd_args())
    fill(nsqd, doctor.topic)
    text, fix = doctor.only("failure", "tls", *at_both(nsqd))
    assert str(nsqd.tcp) in text
    assert "--tls-v1" in fix
    trusting = ("--tls-v1", "--tls-root-ca-file", str(certificates.ca))
    assert doctor.wrong(*at_both(nsqd), *trusting) == []
    text, _ = doctor.only("failure", "tls", *at_both(nsqd), "--tls-v1")
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
    assert [each["level"] for each in followed if each["check"] == "topic"] == ["ok"]


def test_an_nsqd_that_requires_auth(
    doctor: Doctor, make_nsqd: MakeNsqd, authd: Authd, tmp_path: Path
) -> None:
    authd.grant("open sesame")
    nsqd = make_nsqd(*authd.nsqd_args())
    fill(nsqd, doctor.topic)
    (path := tmp_path / "secret").touch(mode=0o600)
    secret = ("--auth-secret-file", str(path))
    path.write_text("barley\n")
    for given in ((), secret):
        text, fix = doctor.only("failure", "auth", *at_both(nsqd), *given)
        assert str(nsqd.tcp) in text
        assert "--auth-secret-file FILE" in fix
        assert ("E_AUTH_FAILED" in text) == bool(given)
    path.write_text("open sesame\n")
    assert doctor.wrong(*at_both(nsqd), *secret) == []


BAD = ("-broadcast-address=h:99", "-broadcast-address=a b", "-broadcast-tcp-port=99999")


def listed(lookupd: Nsqlookupd, topic: str) -> int:
    """At how many nsqds, some of which have no address."""
    return len(json.loads(lookupd.request("GET", "/lookup", topic=topic))["producers"])


@pytest.mark.nsqd_only("it is how nsqd and nsqlookupd take such an address")
def test_nsqds_that_are_registered_where_nobody_can_find_them_cost_no_message_of_the_others(
    doctor: Doctor, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd
) -> None:
    def names_all(texts: str) -> bool:
        """Whether each is named, once."""
        return all(texts.count(name) == 1 for name in ('nsqd "h:99"', 'nsqd "a b"', "is 99999,"))

    good, *bad = [make_nsqd(*option, lookupds=[nsqlookupd]) for option in ((), *zip(BAD))]
    for nsqd in (good, *bad):
        fill(nsqd, doctor.topic, count=1)
    eventually(lambda: listed(nsqlookupd, doctor.topic) == 1 + len(BAD))
    where = ("--topic", doctor.topic, *lookup([nsqlookupd]))
    tailed = doctor.cli("tail", "--channel", "c", "-n", "1", *where)
    assert (tailed.code, tailed.stdout, names_all(tailed.stderr)) == (0, b"x\n", True)
    found = doctor.ask(*lookup([nsqlookupd]))
    wrong = [each for each in found if each["level"] == "failure"]
    assert [each["check"] for each in wrong] == ["listing"] * len(BAD)
    assert names_all("\n".join(each["text"] for each in wrong))
    assert all("--broadcast-address" in each["fix"] for each in wrong)
    assert [each["level"] for each in found if each["check"] == "tcp"] == ["ok"]


@pytest.mark.nsqd_only("it is how nsqd and nsqlookupd take such an address")
def test_an_ipv6_address_in_brackets_is_used(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    """nsqlookupd knows it with its brackets, and so it is told."""
    ports = free_port(), free_port()
    try:
        socket.create_server(("::1", ports[0]), family=socket.AF_INET6).close()
    except OSError as error:
        give_up("::1", "addresses of IPv6", f"no ::1: {error}", "TOOLS")
    nsqd = make_nsqd(
        *("-broadcast-address=[::1]", f"-tcp-address=[::1]:{ports[0]}"),
        *(f"-broadcast-http-port={ports[1]}", "-broadcast-tcp-port=0"),
        lookupds=[nsqlookupd],
    )
    fill(nsqd, topic)
    eventually(lambda: listed(nsqlookupd, topic))
    where = lookup([nsqlookupd])
    tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", "-n", "1", *where)
    assert (tailed.code, tailed.stdout) == (0, b"x\n"), tailed.stderr
    hidden = nsqtools_cli("node", "tombstone", topic, f"[::1]:{ports[1]}", "--yes", *where)
    assert hidden.code == 0, hidden.stderr
    assert listed(nsqlookupd, topic) == 0
