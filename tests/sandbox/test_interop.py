"""The sandbox among real programs of NSQ, servers and Go tools: it is an nsqd for them, too."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from nsqtools.names import Address
from nsqtools.sandbox.pytest import Nsq
from tests.support.binaries import require_nsq
from tests.support.eventually import eventually
from tests.support.raw import Raw, http_ask
from tests.support.servers import Nsqd, Nsqlookupd, SandboxNsqd, SandboxNsqlookupd, Server, drained

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import MakeNsqd
    from tests.support.tls import Certificates

COUNT = 1000
BODIES = [b"%d %s" % (number, b"x" * (number % 50)) for number in range(COUNT)]


class Start(Protocol):
    """Starts a Go tool, which is killed when the test ends."""

    def __call__(self, program: str, *args: str) -> subprocess.Popen[bytes]: ...


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


@pytest.fixture(scope="module")
def server() -> str:
    """What ``nsqd`` is here: the sandbox, also where there is a real one."""
    return "sandbox"


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def start(program: str, *args: str) -> subprocess.Popen[bytes]:
        path = require_nsq().path(program, "that it works on the sandbox")
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [path, *args], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[bytes]) -> bytes:
    """End it as a user would; returns what it printed since."""
    process.send_signal(signal.SIGTERM)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return shown


@pytest.mark.parametrize("option", ["", "snappy", "deflate", "tls_v1"])
def test_nsq_tail_prints_every_message(
    option: str, start: Start, make_nsqd: MakeNsqd, certificates: Certificates, topic: str
) -> None:
    nsqd = make_nsqd(*certificates.server.nsqd_args())
    nsqd.create(topic, "c")
    nsqd.publish(topic, BODIES)
    options = [f"-consumer-opt={option}"] if option else []
    if option == "tls_v1":
        options.append(f"-consumer-opt=tls_root_ca_file,{certificates.ca}")
    tail = start(
        *("nsq_tail", f"-topic={topic}", "-channel=c", f"-nsqd-tcp-address={nsqd.tcp}", *options)
    )
    assert tail.stdout
    lines = [tail.stdout.readline()[:-1] for _ in BODIES]
    assert sorted(lines) == sorted(BODIES)
    eventually(lambda: drained(nsqd, topic, "c"))
    (client,) = nsqd.channel(topic, "c")["clients"]
    assert client["finish_count"] == COUNT
    if option:
        assert client["tls" if option == "tls_v1" else option] is True
    assert stop(tail) == b""


def test_to_nsq_publishes_every_line(start: Start, nsqd: Nsqd, topic: str) -> None:
    process = start("to_nsq", f"-topic={topic}", f"-nsqd-tcp-address={nsqd.tcp}")
    process.communicate(b"".join(body + b"\n" for body in BODIES[1:]), timeout=30)
    assert process.returncode == 0
    found = nsqd.topic(topic)
    assert found["message_count"] == COUNT - 1
    assert found["message_bytes"] == sum(map(len, BODIES[1:]))
