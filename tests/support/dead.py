"""HTTP servers with fixed replies, such as a list of ten thousand dead nsqds."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import TYPE_CHECKING

from tests.support.webserver import Answer, WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsqtools.names import Address
    from tests.support.webserver import Request

REFUSED_PORT = 1


@contextmanager
def dead_cluster(*, refusing: int = 0, hanging: int = 0) -> Iterator[Address]:
    """The address of the nsqlookupd.

    Of the nsqds some refuse connections, and some take them and say nothing; all have topic t.
    """
    hosts = (f"127.{a}.{b}.{c}" for a, b, c in product(range(1, 255), range(250), range(1, 251)))
    places = [(host, REFUSED_PORT) for host, _ in zip(hosts, range(refusing), strict=False)]
    with ExitStack() as stack:
        for _ in range(hanging):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen(8)
            places.append(listener.getsockname())
        nodes = {"channels": ["c"], "producers": [_node(*place) for place in places]}
        answers = {"/nodes": nodes, "/lookup": nodes, "/topics": {"topics": ["t"]}}
        yield stack.enter_context(answering({**answers, "/channels": {"channels": ["c"]}}))


@contextmanager
def answering(answers: Mapping[str, object]) -> Iterator[Address]:
    """Where a server is that answers each path with JSON."""
    encoded = {path: json.dumps(answer).encode() for path, answer in answers.items()}

    def answer(request: Request) -> Answer:
        body = encoded.get(request.target.partition("?")[0], b"{}")
        return Answer(headers=(("X-NSQ-Content-Type", "nsq; version=1.0"),), body=body)

    with WebServer(answer) as server:
        yield server.address


def _node(host: str, port: int) -> dict[str, object]:
    return {
        "remote_address": f"{host}:50000",
        "hostname": "host",
        "broadcast_address": host,
        "tcp_port": port,
        "http_port": port,
        "version": "1.3.0",
        "topics": ["t"],
        "tombstones": [False],
    }
