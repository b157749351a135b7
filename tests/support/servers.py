"""nsqd and nsqlookupd processes on loopback, and what tests ask them over HTTP.

Each is the real one, or the sandbox's in a process of its own with the same flags.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.client
import itertools
import json
import os
import random
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self
from urllib.parse import urlencode

from nsqtools.names import Address
from tests.support.binaries import require_nsq
from tests.support.forkserver import Forked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

START_TIMEOUT = 60.0
REPLY_TIMEOUT = 60.0  # thousands of messages may be synced one by one
STOP_TIMEOUT = 60.0
MPUB_BYTES = 4 << 20  # below nsqd's default -max-body-size

# Below the range that the kernel hands out for outgoing connections: a client cannot connect to
# itself by accident. Each process of tests has a share of them for itself.
_SHARES = [range(first, first + 500) for first in range(20000, 32500, 500)]


@functools.cache
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
            try:
                self.start()
            except PortTakenError:
                self._new_ports()
            else:
                return self
        raise PortTakenError(self._last_words())

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
        deadline = time.monotonic() + START_TIMEOUT
        while b": listening on" not in (said := self.log.read_bytes()[begin:]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                taken = b"address already in use" in said
                raise (PortTakenError if taken else RuntimeError)(self._last_words())
            time.sleep(0.005)
        self._exchange("GET", "/ping")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes too long."""
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

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
        status, reply = self._exchange(method, target, body)
        if status != 200:
            error = LookupError if status == 404 else RuntimeError
            raise error(f"{self.program} {method} {target}: {status} {reply!r}")
        return reply

    def _exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.http, timeout=REPLY_TIMEOUT)
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def _last_words(self) -> str:
        text = self.log.read_text(errors="replace")
        if len(text) > 5000:  # a bad flag is named first, with the usage after it
            text = f"{text[:1000]}\n...\n{text[-4000:]}"
        return f"{self.program} did not start:\n{text}"


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
        for entry in self.stats(topic)["topics"] or ():
            found: dict[str, Any] = entry
            return found
        raise LookupError(f"{self.tcp} has no topic {topic}")

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        """A channel's entry in ``/stats``; LookupError if there is none."""
        for entry in self.topic(topic)["channels"]:
            if entry["channel_name"] == channel:
                found: dict[str, Any] = entry
                return found
        raise LookupError(f"{self.tcp} has no channel {topic}/{channel}")

    def create(self, topic: str, channel: str = "") -> None:
        self._change("create", topic)
        if channel:
            self._change("create", topic, channel)

    def delete(self, topic: str, channel: str = "") -> None:
        self._change("delete", topic, channel)

    def empty(self, topic: str, channel: str = "") -> None:
        self._change("empty", topic, channel)

    def pause(self, topic: str, channel: str = "") -> None:
        self._change("pause", topic, channel)

    def publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish in order, in as few MPUBs as nsqd's size limit allows."""
        pending: list[bytes] = []
        size = 0
        for body in bodies:
            if pending and size + len(body) + 4 > MPUB_BYTES:
                self._mpub(topic, pending)
                pending, size = [], 0
            pending.append(struct.pack(">I", len(body)) + body)
            size += len(body) + 4
        if pending:
            self._mpub(topic, pending)

    def _mpub(self, topic: str, sized: Sequence[bytes]) -> None:
        body = struct.pack(">I", len(sized)) + b"".join(sized)
        self.request("POST", "/mpub", body, topic=topic, binary="true")

    def _change(self, verb: str, topic: str, channel: str = "") -> None:
        if channel:
            self.request("POST", f"/channel/{verb}", topic=topic, channel=channel)
        else:
            self.request("POST", f"/topic/{verb}", topic=topic)


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


def empty(nsqd: Nsqd) -> tuple[str, ...]:
    """Options of nsqtools to drain a channel of this nsqd."""
    return "--until-empty", "--nsqd-http-address", str(nsqd.http), *at(nsqd)


_HELD = ("depth", "in_flight_count", "deferred_count")


def drained(nsqd: Nsqd, topic: str, channel: str) -> bool:
    """Whether a channel holds nothing, and its topic nothing for it: all was finished."""
    of_topic, found = nsqd.topic(topic), nsqd.channel(topic, channel)
    held = (of_topic["depth"], *(found[name] for name in _HELD))
    return not any(held)
