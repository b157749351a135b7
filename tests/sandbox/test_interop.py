"""The sandbox among Go tools: it is an nsqd for them, too."""

import subprocess

import pytest

from tests.support.binaries import require_nsq
from tests.support.eventually import eventually
from tests.support.servers import MakeNsqd, drained
from tests.support.tls import Certificates

COUNT = 1000
BODIES = [b"%d %s" % (number, b"x" * (number % 50)) for number in range(COUNT)]


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
