"""``lookup`` as a process on real nsqlookupds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.eventually import eventually
from tests.support.reporting import lookup as given
from tests.support.reporting import registered

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqlookupd


def test_lookup_unites_and_marks(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, lookupds: list[Nsqlookupd], topic: str
) -> None:
    nsqds = [make_nsqd(lookupds=[lookupd]) for lookupd in lookupds]
    for number, nsqd in enumerate(nsqds):
        nsqd.create(topic, f"channel{number}")
    registered(topic, lookupds)

    def lookup(*words: str) -> str:
        ended = nsqtools_cli("lookup", *words, *given(lookupds))
        assert ended.code == 0, ended.stderr
        return ended.stdout.decode()

    assert lookup("topics") == f"{topic}\n"
    assert eventually(lambda: lookup("channels", topic) == "channel0\nchannel1\n")
    tcp = sorted(str(nsqd.tcp) for nsqd in nsqds)
    assert sorted(line.split("\t")[0] for line in lookup("producers", topic).splitlines()) == tcp
    lookupds[0].request("POST", "/topic/tombstone", topic=topic, node=str(nsqds[0].http))
    nodes = json.loads(lookup("nodes", "--json"))["producers"]
    marks = {node["tcp_port"]: node["tombstones"] for node in nodes}
    assert marks == {nsqds[0].tcp.port: [True], nsqds[1].tcp.port: [False]}
