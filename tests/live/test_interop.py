"""The Go tools and pynsq on the sandbox: it is an nsqd for them, too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.support.eventually import eventually
from tests.support.servers import drained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.authd import Authd
    from tests.support.binaries import Nsq
    from tests.support.servers import MakeNsqd, Nsqd
    from tests.support.tls import Certificates

COUNT = 1000
BODIES = [b"%d %s" % (number, b"x" * (number % 50)) for number in range(COUNT)]
ROOT = Path(__file__).parents[2]


class Start(Protocol):
    """Starts a Go tool, or Python with ``python``; it is killed when the test ends."""

    def __call__(self, program: str, *args: str) -> subprocess.Popen[bytes]: ...


@pytest.fixture(scope="module")
def server() -> str:
    """The sandbox, also where there is the real nsqd, on which these were made."""
    return "sandbox"


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def start(program: str, *args: str) -> subprocess.Popen[bytes]:
        path = sys.executable
        if program != "python":
            nsq: Nsq = request.getfixturevalue("nsq")
            path = nsq.path(program, "that it works on the sandbox")
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [path, *args], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd=ROOT
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


def test_nsq_to_nsq_copies_every_message(
    start: Start, nsqd: Nsqd, make_nsqd: MakeNsqd, topic: str
) -> None:
    other = make_nsqd()
    nsqd.create(topic, "nsq_to_nsq")
    nsqd.publish(topic, BODIES)
    relay = start(
        *("nsq_to_nsq", f"-topic={topic}", f"-nsqd-tcp-address={nsqd.tcp}"),
        f"-destination-nsqd-tcp-address={other.tcp}",
    )
    eventually(lambda: other.topic(topic)["message_count"] == COUNT)
    eventually(lambda: drained(nsqd, topic, "nsq_to_nsq"))
    assert other.topic(topic)["message_bytes"] == sum(map(len, BODIES))
    stop(relay)


def test_to_nsq_publishes_every_line(start: Start, nsqd: Nsqd, topic: str) -> None:
    process = start("to_nsq", f"-topic={topic}", f"-nsqd-tcp-address={nsqd.tcp}")
    process.communicate(b"".join(body + b"\n" for body in BODIES[1:]), timeout=30)
    assert process.returncode == 0
    found = nsqd.topic(topic)
    assert found["message_count"] == COUNT - 1
    assert found["message_bytes"] == sum(map(len, BODIES[1:]))


@pytest.mark.parametrize("option", ["", "snappy", "deflate", "auth_secret"])
def test_pynsq_publishes_and_consumes(
    option: str, start: Start, make_nsqd: MakeNsqd, authd: Authd, topic: str
) -> None:
    options: dict[str, Any] = {option: True} if option else {}
    args: tuple[str, ...] = ()
    if option == "auth_secret":
        authd.grant("sesame")
        options["auth_secret"] = "sesame"
        args = tuple(authd.nsqd_args())
    nsqd = make_nsqd(*args)
    count = 300
    pynsq = start(
        *("python", "-m", "tests.support.pynsq_copy", str(nsqd.tcp), topic, str(count)),
        json.dumps(options),
    )
    assert pynsq.stdout
    got = json.loads(pynsq.stdout.readline())
    assert got == [2 if number % 10 == 0 else 1 for number in range(count)]
    eventually(lambda: drained(nsqd, topic, "c"))
    found = nsqd.channel(topic, "c")
    assert (found["message_count"], found["requeue_count"]) == (count, count // 10)
