"""Fetches names of topics and channels for shell completion, without an event loop.

All servers are asked at once, for ``LIMIT`` seconds in total, through blocking sockets. No secret
is sent.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Iterable
    from socket import socket
    from ssl import SSLSocket

    from nsqtools.net.http.wire import Reply

LIMIT = 0.3

_READ_SIZE = 65536
_MAX_REPLY = 16 << 20


class SuggestionQuery(NamedTuple):
    """A GET request for all topics, or for the channels of ``topic``.

    ``path`` includes the query. ``files`` are for https: the CAs to trust, empty for the system's,
    then the client certificate and its key, empty for none. ``nodes`` asks nsqlookupd for the HTTP
    addresses of nsqds.
    """

    tls: bool
    address: Address
    path: str
    topic: str
    files: tuple[str, str, str]
    nodes: bool = False


def ask(questions: Iterable[SuggestionQuery]) -> set[str]:
    """Return the names in all timely responses; names are not checked."""
    from threading import Thread

    deadline = time.monotonic() + LIMIT
    found: list[str] = []

    def work(question: SuggestionQuery) -> None:
        with suppress(Exception):
            found.extend(_get(question))

    # Daemon threads: a DNS look-up cannot be cancelled, and must not delay the exit.
    threads = [Thread(target=work, args=(question,), daemon=True) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return set(found)


def _get(question: SuggestionQuery) -> list[str]:
    import json

    reply = _exchange(question)
    if reply is None or reply.status != 200:
        return []
    document = json.loads(reply.body)
    found = document.get("data", document)
    return _read_nodes(found) if question.nodes else _read_names(found, question.topic)


def _exchange(question: SuggestionQuery) -> Reply | None:
    from socket import create_connection

    from nsqtools.net.http.wire import ReplyReader, render, render_fields

    accept = (b"Accept", b"application/vnd.nsq; version=1.0")
    fields = render_fields([(b"Host", str(question.address).encode()), accept])
    reader = ReplyReader("GET", _MAX_REPLY)
    with (
        create_connection(question.address, LIMIT) as plain,
        _over_tls(plain, question) if question.tls else plain as connection,
    ):
        connection.sendall(render("GET", question.path.encode(), fields))
        while chunk := connection.recv(_READ_SIZE):
            if reply := reader.feed(chunk):
                return reply
    return reader.finish()


def _over_tls(plain: socket, question: SuggestionQuery) -> SSLSocket:
    from ssl import create_default_context

    ca, cert, key = question.files
    context = create_default_context(cafile=ca or None)
    if cert:
        context.load_cert_chain(cert, key, password="")  # a TAB press asks for no passphrase
    return context.wrap_socket(plain, server_hostname=question.address.host)


def _read_names(reply: dict[str, Any], topic: str) -> list[str]:
    """Return the names in a response: texts from nsqlookupd, objects from nsqd."""
    if "channels" in reply:
        return list(reply["channels"])
    entries = reply.get("topics") or ()
    if not topic:
        return [each if isinstance(each, str) else each["topic_name"] for each in entries]
    return [
        channel["channel_name"]
        for each in entries
        if each["topic_name"] == topic
        for channel in each["channels"]
    ]


def _read_nodes(reply: dict[str, Any]) -> list[str]:
    return [
        str(Address(each["broadcast_address"], each["http_port"])) for each in reply["producers"]
    ]
