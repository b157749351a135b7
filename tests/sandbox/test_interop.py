"""The sandbox among real programs of NSQ: each finds and tells the other what it should."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.names import Address
from nsqtools.sandbox.pytest import Nsq
from tests.support.eventually import eventually
from tests.support.raw import Raw, http_ask
from tests.support.servers import Nsqd, Nsqlookupd, SandboxNsqd, SandboxNsqlookupd, Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def nsq() -> Iterator[Nsq]:
    with Nsq() as running:
        yield running


@pytest.mark.parametrize(
    ("nsqd_kind", "lookupd_kind"), [(Nsqd, SandboxNsqlookupd), (SandboxNsqd, Nsqlookupd)]
)
def test_an_nsqd_and_an_nsqlookupd_of_different_kinds_agree(
    nsqd_kind: type[Nsqd], lookupd_kind: type[Nsqlookupd], tmp_path: Path
) -> None:
    with (
        lookupd_kind(tmp_path / "nsqlookupd") as lookupd,
        nsqd_kind(tmp_path / "nsqd", lookupds=[lookupd]) as nsqd,
    ):

        def ask(request: str) -> Any:
            return http_ask(lookupd.http, f"GET {request}").json

        nsqd.create("t", "c")
        nsqd.create("t", "d#ephemeral")
        nsqd.create("alone")
        eventually(lambda: sorted(ask("/topics")["topics"]) == ["alone", "t"])
        eventually(lambda: sorted(ask("/channels?topic=t")["channels"]) == ["c", "d#ephemeral"])
        (found,) = ask("/lookup?topic=t")["producers"]
        assert (found["broadcast_address"], found["tcp_port"]) == nsqd.tcp
        assert (found["http_port"], found["version"]) == (nsqd.http.port, "1.3.0")
        nsqd.delete("t", "d#ephemeral")
        nsqd.delete("alone")
        eventually(lambda: ask("/channels?topic=t")["channels"] == ["c"])
        eventually(lambda: ask("/lookup?topic=alone")["producers"] == [])
        # It asks for channels before a new topic's messages flow.
        http_ask(lookupd.http, "POST /channel/create?topic=new&channel=waiting")
        nsqd.publish("new", [b"x"])
        eventually(lambda: nsqd.channel("new", "waiting")["depth"] == 1)
        nsqd.stop()
        eventually(lambda: not lookupd.lookup("t"))


class Nsqadmin(Server):
    program = "nsqadmin"

    def _arguments(self) -> list[str]:
        return [f"-http-address={self.http}"]


def test_nsqadmin_reads_and_changes_it(nsq: Nsq, tmp_path: Path) -> None:
    nsq.publish("t", *["x"] * 7)
    flag = f"-lookupd-http-address={nsq.lookupd_http_address}"
    with (
        Raw(Address.parse(nsq.nsqd_tcp_address)) as consumer,
        Nsqadmin(tmp_path / "nsqadmin", flag) as admin,
    ):
        consumer.identify(client_id="me", hostname="host")
        consumer.subscribe("t", "c")
        assert http_ask(admin.http, "GET /api/topics").json == {"message": "", "topics": ["t"]}
        channel = http_ask(admin.http, "GET /api/topics/t/c").json
        assert (channel["depth"], channel["clients"][0]["client_id"]) == (7, "me")
        (node,) = http_ask(admin.http, "GET /api/nodes").json["nodes"]
        assert f"127.0.0.1:{node['http_port']}" == nsq.nsqd_http_address
        for action, paused in (("pause", True), ("unpause", False)):
            body = json.dumps({"action": action}).encode()
            assert http_ask(admin.http, "POST /api/topics/t/c", body).status == 200
            assert nsq.stats("t")["topics"][0]["channels"][0]["paused"] is paused
        assert http_ask(admin.http, "DELETE /api/topics/t").status == 200
        assert nsq.stats()["topics"] == []
