"""nsqd and nsqlookupd processes on loopback, and what tests ask them over HTTP.

Each is the real one, or the sandbox's in a process of its own with the same flags.
"""

import contextlib
import fcntl
import itertools
import json
import os
import random
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partialmethod
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self
from urllib.parse import urlencode

from nsqtools.names import Address
from tests.support.binaries import require_nsq
from tests.support.eventually import eventually
from tests.support.forkserver import Forked

PATIENCE = 60.0  # to start, to stop, and to reply: thousands of messages may be synced one by one
MPUB_BYTES = 4 << 20  # below nsqd's default -max-body-size

# Below the range that the kernel hands out for outgoing connections: a client cannot connect to
# itself by accident. Each process of tests has a share of them for itself.
_SHARES = [range(first, first + 500) for first in range(20000, 32500, 500)]


@cache
def _own_ports() -> Iterator[int]:
    """Every other port of a share that no other process of tests on this machine has."""
    folder = Path(tempfile.gettempdir(), f"nsqtools-tests-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for share in random.sample(_SHARES, len(_SHARES)):
        lock = os.open(folder / str(share.start), os.O_CREAT | os.O_RDWR, 0o666)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return itertools.cycle(share[::2])  # and the lock is held to the end
        os.close(lock)
    raise RuntimeError(f"{len(_SHARES)} processes of tests run already: see {folder}")


def free_port(*further: int) -> int:
    """A free port of 127.0.0.1 from this process's share.

    With ``further``, the ports that far above it are free too.
    """
    return next(port for port in _own_ports() if all(is_free(port + up) for up in (0, *further)))


def is_free(port: int) -> bool:
    with server_socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def server_socket() -> socket.socket:
    """Takes a port like a server, also while connections of the last one there fade away."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return server


class Server:
    """One server process; a context manager. It keeps ports and data over ``restart()``.

    ``args`` come after the program's own and may override them, but for ``-log-level`` above
    info: that a server is up is read in its log, ``self.log``.
    """

    program: ClassVar[str]

    def __init__(self, data_path: Path, *args: str) -> None:
        self.data_path = data_path
        self.args = args
        self.log = data_path / f"{self.program}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._new_ports()

    def _new_ports(self) -> None:
        self.tcp, self.http, self.https = (Address("127.0.0.1", free_port()) for _ in range(3))

    def _spawn(self, **streams: Any) -> subprocess.Popen[bytes]:
        path = require_nsq().path(self.program)
        return subprocess.Popen([path, *self._arguments(), *self.args], **streams)

    def _arguments(self) -> list[str]:
        return [
            f"-tcp-address={self.tcp}",
            f"-http-address={self.http}",
            "-broadcast-address=127.0.0.1",
            "-log-level=info",
        ]

    def __enter__(self) -> Self:
        self.data_path.mkdir(parents=True, exist_ok=True)
        for _ in range(5):
            with contextlib.suppress(PortTakenError):
                self.start()
                return self
            self._new_ports()
        raise PortTakenError(self.log.read_text())

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process, f"{self.program} is not running"
        return self._process.pid

    def start(self) -> None:
        """Start on the ports of this object and wait until HTTP is served."""
        assert not self._process, f"{self.program} runs already"
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = self._spawn(stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while b": listening on" not in (said := self.log.read_bytes()[begin:]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                error = PortTakenError if b"address already in use" in said else RuntimeError
                raise error(f"{self.program} did not start:\n{said[:5000].decode()}")
            time.sleep(0.005)
        with contextlib.suppress(RuntimeError):  # it may require TLS
            self.request("GET", "/ping")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes too long."""
        if self._process:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
            self.kill()

    def kill(self) -> None:
        """SIGKILL: no goodbye to clients, nothing in memory is saved."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop, unless that happened before, and start on the same ports and data."""
        self.stop()
        self.start()

    def request(self, method: str, path: str, body: bytes | None = None, **query: object) -> bytes:
        """The body of a reply of status 200; LookupError for 404, RuntimeError for others."""
        target = f"{path}?{urlencode(query)}" if query else path
        with contextlib.closing(HTTPConnection(*self.http, timeout=PATIENCE)) as connection:
            connection.request(method, target, body)
            reply = connection.getresponse()
            data = reply.read()
        if reply.status != 200:
            error = LookupError if reply.status == 404 else RuntimeError
            raise error(f"{self.program} {method} {target}: {reply.status} {data!r}")
        return data


class PortTakenError(RuntimeError):
    """Another process has one of the ports."""


class Nsqlookupd(Server):
    """A real nsqlookupd."""

    program = "nsqlookupd"

    def lookup(self, topic: str) -> set[Address]:
        """TCP addresses of the topic's producers; empty for an unknown topic."""
        try:
            reply = json.loads(self.request("GET", "/lookup", topic=topic))
        except LookupError:
            return set()
        return {Address(each["broadcast_address"], each["tcp_port"]) for each in reply["producers"]}


class Nsqd(Server):
    """A real nsqd; ``lookupds`` are told of it.

    The methods use plain HTTP: an nsqd for tests that requires TLS is started with
    ``-tls-required=tcp-https``, which leaves HTTP open.
    """

    program = "nsqd"

    def __init__(self, data_path: Path, *args: str, lookupds: Sequence[Nsqlookupd] = ()) -> None:
        super().__init__(data_path, *args)
        self.lookupds = lookupds

    def _arguments(self) -> list[str]:
        return [
            *super()._arguments(),
            f"-https-address={self.https}",
            f"-data-path={self.data_path}",
            *(f"-lookupd-tcp-address={each.tcp}" for each in self.lookupds),
        ]

    def stats(self, topic: str = "", channel: str = "") -> dict[str, Any]:
        """``/stats`` as JSON, of one topic or channel if given."""
        reply = self.request("GET", "/stats", format="json", topic=topic, channel=channel)
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def topic(self, topic: str) -> dict[str, Any]:
        """A topic's entry in ``/stats``; LookupError if there is none."""
        found: list[dict[str, Any]] = self.stats(topic)["topics"]
        if not found:
            raise LookupError(f"{self.tcp} has no topic {topic}")
        return found[0]

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        """A channel's entry in ``/stats``; LookupError if there is none."""
        found: dict[str, dict[str, Any]] = {
            each["channel_name"]: each for each in self.topic(topic)["channels"]
        }
        return found[channel]

    def create(self, topic: str, channel: str = "") -> None:
        self._change("create", topic)
        if channel:
            self._change("create", topic, channel)

    def _change(self, verb: str, topic: str, channel: str = "") -> None:
        if channel:
            self.request("POST", f"/channel/{verb}", topic=topic, channel=channel)
        else:
            self.request("POST", f"/topic/{verb}", topic=topic)

    delete = partialmethod(_change, "delete")
    empty = partialmethod(_change, "empty")
    pause = partialmethod(_change, "pause")
    unpause = partialmethod(_change, "unpause")

    def publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish in order, in as few MPUBs as nsqd's size limit allows."""
        batches: list[list[bytes]] = []
        size = MPUB_BYTES
        for body in bodies:
            size += len(body) + 4
            if size > MPUB_BYTES:
                batches.append([])
                size = len(body) + 4
            batches[-1].append(struct.pack(">I", len(body)) + body)
        for batch in batches:
            sized = struct.pack(">I", len(batch)) + b"".join(batch)
            self.request("POST", "/mpub", sized, topic=topic, binary="true")


class Sandboxed(Server):
    """A server of the sandbox; nothing of it survives a restart."""

    def _spawn(self, **streams: Any) -> subprocess.Popen[bytes]:
        args = self.program, *self._arguments(), *self.args
        return Forked("tests.support.sandboxed", *args, env=dict(os.environ), **streams)


class SandboxNsqlookupd(Sandboxed, Nsqlookupd):
    """The sandbox's nsqlookupd."""


class SandboxNsqd(Sandboxed, Nsqd):
    """The sandbox's nsqd."""


class MakeNsqlookupd(Protocol):
    """Starts an nsqlookupd that is stopped when the test ends."""

    def __call__(self, *args: str) -> Nsqlookupd: ...


class MakeNsqd(Protocol):
    """Starts an nsqd, in a data path of its own, that is stopped when the test ends."""

    def __call__(self, *args: str, lookupds: Sequence[Nsqlookupd] = ()) -> Nsqd: ...


def at(nsqd: Nsqd) -> tuple[str, str]:
    """Options of nsqtools for this nsqd."""
    return "--nsqd-tcp-address", str(nsqd.tcp)


def at_both(nsqd: Nsqd) -> tuple[str, ...]:
    """Options of nsqtools for both addresses of this nsqd."""
    return *at(nsqd), *http([nsqd])


def empty(nsqd: Nsqd) -> tuple[str, ...]:
    """Options of nsqtools to drain a channel of this nsqd."""
    return "--until-empty", *at_both(nsqd)


def drained(nsqd: Nsqd, topic: str, channel: str) -> bool:
    """Whether a channel holds nothing, and its topic nothing for it: all was finished."""
    found = nsqd.channel(topic, channel)
    held = ("depth", "in_flight_count", "deferred_count")
    return not (nsqd.topic(topic)["depth"] or any(found[name] for name in held))


def http(nsqds: Iterable[Nsqd]) -> list[str]:
    return [word for nsqd in nsqds for word in ("--nsqd-http-address", str(nsqd.http))]


def lookup(lookupds: Iterable[Nsqlookupd]) -> list[str]:
    return [word for each in lookupds for word in ("--lookupd-http-address", str(each.http))]


def fill(nsqd: Nsqd, topic: str, channel: str = "c", count: int = 3) -> None:
    """Create them, and publish so many messages that then are in the channel."""
    nsqd.create(topic, channel)
    nsqd.publish(topic, [b"x"] * count)
    eventually(lambda: nsqd.channel(topic, channel)["depth"] == count)


def registered(topic: str, lookupds: Iterable[Nsqlookupd], count: int = 1) -> None:
    """Wait until each of them lists the topic at so many nsqds."""
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: len(lookupd.lookup(topic)) == count)  # type: ignore[misc]
