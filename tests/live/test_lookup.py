"""``lookup`` as a process on real nsqlookupds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd


def test_lookup_unites_and_marks(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    lookupds = [make_nsqlookupd(), make_nsqlookupd()]
    nsqds = [make_nsqd(lookupds=[lookupd]) for lookupd in lookupds]
    for number, nsqd in enumerate(nsqds):
        nsqd.create(topic, f"channel{number}")
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: lookupd.lookup(topic))  # type: ignore[misc]
    addresses = [word for each in lookupds for word in ("--lookupd-http-address", str(each.http))]

    def lookup(*words: str, code: int = 0) -> str:
        ended = nsqtools_cli("lookup", *words, *addresses)
        assert ended.code == code, ended.stderr
        return ended.stdout.decode()

    assert lookup("topics") == f"{topic}\n"
    assert eventually(lambda: lookup("channels", topic) == "channel0\nchannel1\n")
    tcp = sorted(str(nsqd.tcp) for nsqd in nsqds)
    assert sorted(line.split("\t")[0] for line in lookup("producers", topic).splitlines()) == tcp
    lookupds[0].request(
        "POST", "/topic/tombstone", topic=topic, node=f"127.0.0.1:{nsqds[0].http.port}"
    )
    nodes = json.loads(lookup("nodes", "--json"))["producers"]
    marks = {node["tcp_port"]: node["tombstones"] for node in nodes}
    assert marks == {nsqds[0].tcp.port: [True], nsqds[1].tcp.port: [False]}
    lookupds[0].stop()
    survived = nsqtools_cli("lookup", "topics", *addresses)
    assert (survived.code, survived.stdout.decode()) == (0, f"{topic}\n")
    assert str(lookupds[0].http) in survived.stderr
    lookupds[1].stop()
    lookup("topics", code=3)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_topic_that_no_nsqlookupd_knows_is_a_failure(
    nsqtools_cli: Cli, make_nsqlookupd: MakeNsqlookupd, topic: str, form: tuple[str, ...]
) -> None:
    lookupd = make_nsqlookupd()
    where = ("--lookupd-http-address", str(lookupd.http), *form)
    for what in ("channels", "producers"):
        ended = nsqtools_cli("lookup", what, topic, *where)
        assert (ended.code, ended.stdout) == (1, b"")
        assert len(ended.stderr.splitlines()) == 1
    lookupd.request("POST", "/topic/create", topic=topic)
    for what in ("channels", "producers"):
        assert nsqtools_cli("lookup", what, topic, *where).code == 0
