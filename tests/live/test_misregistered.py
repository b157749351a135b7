"""nsqds that are registered where nobody can find them cost themselves, and no other answer."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.binaries import give_up
from tests.support.eventually import eventually
from tests.support.reporting import fill, lookup
from tests.support.servers import free_port

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd

pytestmark = pytest.mark.nsqd_only("it is how nsqd and nsqlookupd take such an address")

BAD = ("-broadcast-address=h:99", "-broadcast-address=a b", "-broadcast-tcp-port=99999")


@pytest.fixture
def bad(make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str) -> list[Nsqd]:
    """All have the topic, and a message in its channel."""
    made = [make_nsqd(option, lookupds=[nsqlookupd]) for option in BAD]
    for nsqd in made:
        fill(nsqd, topic, count=1)
    eventually(lambda: len(listed(nsqlookupd, topic)) == len(BAD))
    return made


def listed(lookupd: Nsqlookupd, topic: str) -> list[dict[str, object]]:
    """As it answers, for there are no addresses of the bad ones."""
    with contextlib.suppress(LookupError):
        return json.loads(lookupd.request("GET", "/lookup", topic=topic))["producers"]  # type: ignore[no-any-return]
    return []


@pytest.fixture
def good(make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, bad: list[Nsqd], topic: str) -> Nsqd:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"found"])
    eventually(lambda: len(listed(nsqlookupd, topic)) == len(bad) + 1)
    return nsqd


def names_all(stderr: str) -> bool:
    """Whether each is named, in one warning of its own."""
    return all(stderr.count(name) == 1 for name in ('nsqd "h:99"', 'nsqd "a b"', "is 99999,"))


def test_they_cost_no_message_of_the_others_and_the_doctor_says_what_is_wrong(
    nsqtools_cli: Cli, nsqlookupd: Nsqlookupd, good: Nsqd, topic: str
) -> None:
    ends = ("--topic", topic, "--channel", "c", "-n", "1", *lookup([nsqlookupd]))
    tailed = nsqtools_cli("tail", *ends)
    assert (tailed.code, tailed.stdout) == (0, b"found\n"), tailed.stderr
    assert names_all(tailed.stderr)
    ended = nsqtools_cli("doctor", "--topic", topic, "--json", *lookup([nsqlookupd]))
    findings = json.loads(ended.stdout)["findings"]
    wrong = [each for each in findings if each["level"] == "failure"]
    assert ended.code == 1
    assert [each["check"] for each in wrong] == ["listing"] * len(BAD)
    assert names_all("\n".join(each["text"] for each in wrong))
    assert all("--broadcast-address" in each["fix"] for each in wrong)
    assert [each["level"] for each in findings if each["check"] == "tcp"] == ["ok"]


def test_an_ipv6_address_in_brackets_is_used(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
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
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"six"])
    eventually(lambda: listed(nsqlookupd, topic))
    tailed = nsqtools_cli(
        "tail", "--topic", topic, "--channel", "c", "-n", "1", *lookup([nsqlookupd])
    )
    assert (tailed.code, tailed.stdout) == (0, b"six\n"), tailed.stderr
    # nsqlookupd knows it with its brackets, and so it is told.
    node = nsqtools_cli(
        "node", "tombstone", topic, f"[::1]:{ports[1]}", "--yes", *lookup([nsqlookupd])
    )
    assert node.code == 0, node.stderr
    assert listed(nsqlookupd, topic) == []
