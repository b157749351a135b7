"""HTTP servers with fixed replies, such as a list of ten thousand dead nsqds."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice, product

from nsqtools.names import Address
from tests.support.webserver import Answer, Request, WebServer


@contextmanager
def dead_cluster(*, refusing: int = 0, hanging: int = 0) -> Iterator[Address]:
    """The address of the nsqlookupd.

    Of the nsqds some refuse connections, and some take them and say nothing; all have topic t.
    """
    node = {"version": "1.3.0", "topics": ["t"], "tombstones": [False], "hostname": "host"}
    places = ((f"127.{a}.{b}.1", 1) for a, b in product(range(1, 255), range(250)))
    found = [*islice(places, refusing)]
    with ExitStack() as stack:
        for _ in range(hanging):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=8))
            found.append(listener.getsockname())
        nodes = {
            "channels": ["c"],
            "producers": [
                {**node, "broadcast_address": host, "tcp_port": port, "http_port": port}
                for host, port in found
            ],
        }
        answers = dict.fromkeys(("/nodes", "/lookup", "/channels"), nodes)
        yield stack.enter_context(answering({**answers, "/topics": {"topics": ["t"]}}))


@contextmanager
def answering(answers: Mapping[str, object]) -> Iterator[Address]:
    """Where a server is that answers each path with JSON."""
    encoded = {path: json.dumps(answer).encode() for path, answer in answers.items()}

    def answer(request: Request) -> Answer:
        body = encoded.get(request.target.partition("?")[0], b"{}")
        return Answer(headers=(("X-NSQ-Content-Type", "nsq; version=1.0"),), body=body)

    with WebServer(answer) as server:
        yield server.address
