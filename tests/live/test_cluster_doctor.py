"""``doctor`` without ``--topic``: clusters that are well, and one with a fault of each kind.

What is found in which facts is tested in tests/engine/test_diagnosis.py; these are the facts.
"""

import json
import os
import signal
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.authd import Authd
from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.raw import Raw
from tests.support.servers import (
    MakeNsqd,
    Nsqd,
    Nsqlookupd,
    at_both,
    drained,
    fill,
    free_port,
    http,
    lookup,
    registered,
)
from tests.support.tls import Certificates

MANY = 1000


def examined(cli: Cli, *args: str, code: int = 0) -> dict[str, Any]:
    ended = cli("doctor", "--json", *args)
    assert (ended.code, ended.stderr) == (code, ""), ended.stdout.decode()
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def codes(found: dict[str, Any]) -> set[str]:
    return {each["code"] for each in found["findings"]} - {""}


@pytest.fixture
def consumed(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd], topic: str
) -> list[Nsqd]:
    """Two nsqds that both nsqlookupds list, with a topic that is consumed."""
    nsqds = [make_nsqd(lookupds=lookupds) for _ in range(2)]
    for each in nsqds:
        fill(each, topic)
    registered(topic, lookupds, count=2)
    nsqtools_cli.start("tail", "--topic", topic, "--channel", "c", *lookup(lookupds))
    for each in nsqds:
        eventually(lambda each=each: each.channel(topic, "c")["client_count"])  # type: ignore[misc]
        eventually(lambda each=each: drained(each, topic, "c"))  # type: ignore[misc]
    return nsqds


def test_nothing_is_found_where_nothing_is_wrong_and_what_has_changed_is_told(
    nsqtools_cli: Cli, consumed: list[Nsqd], lookupds: list[Nsqlookupd], topic: str, tmp_path: Path
) -> None:
    saved, where = str(tmp_path / "seen.json"), lookup(lookupds)
    well = examined(nsqtools_cli, "--save", saved, "--compare", saved, *where)
    assert "changes" not in well  # there was nothing to compare with
    assert {each["severity"] for each in well["findings"]} == {"ok"}
    assert codes(examined(nsqtools_cli, *http(consumed))) == set()  # and without nsqlookupd
    consumed[0].create("new", "archive")
    consumed[0].publish("new", [b"x"])
    registered("new", lookupds)
    eventually(lambda: consumed[0].channel("new", "archive")["depth"] == 1)
    found = examined(nsqtools_cli, "--compare", saved, "--save", saved, *where, code=4)
    assert codes(found) == {"NSQ036"}
    changes = found["changes"]
    assert [each["code"] for each in changes["new"]] == ["NSQ036"]
    assert [each["channel"] for each in changes["came"]] == ["", "archive"]
    assert [each["topic"] for each in changes["still"]] == [topic, topic]
    skipping = ("--skip", "nsq036", "--save", saved)
    assert codes(examined(nsqtools_cli, *skipping, *where)) == set()  # it is saved all the same
    text = nsqtools_cli("doctor", "--compare", saved, "--skip", "NSQ036", *where)
    assert text.stdout.decode().partition("Changes since")[2].splitlines()[1:] == [
        f"still    topic {each}" for each in sorted(("new", topic))
    ]
    consumed[0].delete("new")
    changes = examined(nsqtools_cli, "--compare", saved, "--skip", "NSQ025", *where)["changes"]
    assert [each["code"] for each in changes["gone"]] == ["NSQ036"]
    assert [each["channel"] for each in changes["went"]] == ["", "archive"]
    left = examined(nsqtools_cli, "--compare", saved, *http(consumed[:1]))["changes"]
    assert left["nsqds_went"] == [str(consumed[1].tcp)]
    text = nsqtools_cli("doctor", "--compare", saved, *http(consumed[:1]))
    assert f"went     nsqd {consumed[1].tcp}" in text.stdout.decode().splitlines()


def test_what_was_seen_is_saved_though_nobody_reads_the_output(
    nsqtools_cli: Cli, consumed: list[Nsqd], tmp_path: Path
) -> None:
    saved = tmp_path / "seen.json"
    unread, output = os.pipe()
    os.close(unread)
    process = nsqtools_cli.start("doctor", "--save", str(saved), *http(consumed), stdout=output)
    os.close(output)
    assert process.wait(60) == -signal.SIGPIPE
    assert saved.exists()


@pytest.mark.nsqd_only("the sandbox does not report an end of its certificate")
def test_the_certificate_of_an_nsqd_that_requires_auth_is_known_with_tls_and_a_secret(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, authd: Authd, tmp_path: Path
) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    leaf = ca.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=9))
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authd.grant("open sesame")
    pem = tmp_path / "server.pem"
    nsqd = make_nsqd(*authd.nsqd_args(), f"-tls-cert={pem}", f"-tls-key={pem}")
    (tmp_path / "secret").write_text("open sesame")
    (tmp_path / "secret").chmod(0o600)
    given = (*at_both(nsqd), "--auth-secret-file", str(tmp_path / "secret"))
    assert codes(examined(nsqtools_cli, *given)) == set()
    trusting = (*given, "--tls-v1", "--tls-root-ca-file", str(tmp_path / "ca.pem"))
    assert codes(examined(nsqtools_cli, *trusting, code=4)) == {"NSQ007"}


PLANTED = {
    *("NSQ006", "NSQ007", "NSQ022", "NSQ023", "NSQ024", "NSQ025", "NSQ027", "NSQ032", "NSQ033"),
    *("NSQ034", "NSQ035", "NSQ036", "NSQ040", "NSQ041", "NSQ043", "NSQ044", "NSQ050"),
}


@pytest.mark.nsqd_only("nsqd of the sandbox cannot broadcast another port")
def test_each_planted_fault_is_found(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    lookupds: list[Nsqlookupd],
    certificates: Certificates,
) -> None:
    main = make_nsqd(*certificates.expired.nsqd_args(), lookupds=lookupds)
    half = make_nsqd("-msg-timeout=200ms", lookupds=lookupds[:1])
    stranger = make_nsqd()
    ports = (f"-broadcast-tcp-port={free_port()}", f"-broadcast-http-port={free_port()}")
    make_nsqd(*ports, lookupds=lookupds).create("unreachable")
    with ExitStack() as stack:
        expected = _planted(stack, main, half, lookupds)
        registered("unreachable", lookupds)
        where = (*lookup(lookupds), *http([stranger]))
        found = examined(nsqtools_cli, *where, code=1)
    assert codes(found) == PLANTED
    about: dict[str, set[tuple[str, str]]] = {code: set() for code in PLANTED}
    for each in found["findings"]:
        about.get(each["code"], set()).add((each["topic"], each["channel"]))
    assert {code: about[code] for code in expected} == expected
    assert all(each["fix"] for each in found["findings"] if each["code"])


def _planted(
    stack: ExitStack, main: Nsqd, half: Nsqd, lookupds: list[Nsqlookupd]
) -> dict[str, set[tuple[str, str]]]:
    """Plant the faults of topics; returns the topics and channels of their codes."""

    def consumer(nsqd: Nsqd, topic: str, ready: int) -> Raw:
        raw = stack.enter_context(Raw(nsqd.tcp))
        raw.identify(client_id=topic)
        return raw.subscribe(topic, "c", ready)

    fill(main, "orphan", count=MANY)
    main.create("idle", "c")
    main.publish("waiting", [b"x"])
    main.create("paused")
    main.pause("paused")
    main.create("halted", "c")
    main.pause("halted", "c")
    fill(main, "refused", count=30)
    consumer(main, "refused", 0)
    fill(main, "stuck", count=5)
    consumer(main, "stuck", 2)
    fill(half, "late", count=20)
    with consumer(half, "late", 20):
        eventually(lambda: half.channel("late", "c")["timeout_count"] >= 20)
    fill(main, "failing", count=10)
    failing = consumer(main, "failing", 10)
    for _ in range(20):
        failing.send(f"REQ {failing.message().id} 0")
    registered("orphan", lookupds)
    registered("late", lookupds[:1])
    for lookupd in lookupds:
        lookupd.request("POST", "/topic/tombstone", topic="orphan", node=str(main.http))
    lookupds[0].request("POST", "/topic/create", topic="forgotten")
    lookupds[0].request("POST", "/channel/create", topic="idle", channel="forgotten")
    return {
        "NSQ025": {("forgotten", ""), ("idle", "forgotten")},
        "NSQ027": {("orphan", "")},
        "NSQ032": {("idle", "")},
        "NSQ033": {("waiting", "")},
        "NSQ034": {("paused", "")},
        "NSQ035": {("halted", "c")},
        "NSQ036": {("orphan", "c"), ("late", "c")},
        "NSQ040": {("refused", "c")},
        "NSQ041": {("stuck", "c")},
        "NSQ043": {("late", "c")},
        "NSQ044": {("failing", "c")},
    }
