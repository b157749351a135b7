"""The sandbox among real programs of NSQ, servers and Go tools: it is an nsqd for them, too."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.binaries import require_nsq
from tests.support.eventually import eventually
from tests.support.raw import http_ask
from tests.support.servers import Nsqd, Nsqlookupd, SandboxNsqd, SandboxNsqlookupd, drained

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import MakeNsqd
    from tests.support.tls import Certificates

COUNT = 1000
BODIES = [b"%d %s" % (number, b"x" * (number % 50)) for number in range(COUNT)]


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
        nsqd.stop()
        eventually(lambda: not lookupd.lookup("t"))


@pytest.fixture(scope="module")
def server() -> str:
    """What ``nsqd`` is here: the sandbox, also where there is a real one."""
    return "sandbox"


@pytest.mark.parametrize("option", ["snappy", "deflate", "tls_v1"])
def test_nsq_tail_prints_every_line_that_to_nsq_publishes(
    option: str, make_nsqd: MakeNsqd, certificates: Certificates, topic: str
) -> None:
    nsqd = make_nsqd(*certificates.server.nsqd_args())
    nsqd.create(topic, "c")
    to_nsq, nsq_tail = (
        require_nsq().path(program, "that it works on the sandbox")
        for program in ("to_nsq", "nsq_tail")
    )
    flags = [f"-topic={topic}", f"-nsqd-tcp-address={nsqd.tcp}"]
    lines = b"".join(body + b"\n" for body in BODIES)
    subprocess.run([to_nsq, *flags], input=lines, check=True, timeout=60, capture_output=True)
    options = [f"-consumer-opt={option}", f"-consumer-opt=tls_root_ca_file,{certificates.ca}"]
    with subprocess.Popen(
        [nsq_tail, *flags, "-channel=c", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as tail:
        assert tail.stdout
        try:
            assert sorted(tail.stdout.readline()[:-1] for _ in BODIES) == sorted(BODIES)
            eventually(lambda: drained(nsqd, topic, "c"))
            (client,) = nsqd.channel(topic, "c")["clients"]
            assert client["finish_count"] == COUNT
            assert client[option.removesuffix("_v1")] is True
        finally:
            tail.kill()
