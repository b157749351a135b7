"""Names of topics and channels for a TAB press, a process that has no time for an event loop.

Servers are asked all at once, for ``LIMIT`` seconds in total, through blocking sockets, and are
told no secret.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.names import Address

if TYPE_CHECKING:
    from collections.abc import Iterable
    from http.client import HTTPConnection

LIMIT = 0.3

_MAX_REPLY = 16 << 20


class SuggestionQuery(NamedTuple):
    """A GET of ``path``, with its query, about all topics or the channels of one.

    For https ``cafile`` names the CAs to trust, or is empty for the system's. ``nodes`` asks
    nsqlookupd for nsqds, by the addresses of their HTTP APIs.
    """

    tls: bool
    address: Address
    path: str
    topic: str
    cafile: str
    nodes: bool = False


def ask(questions: Iterable[SuggestionQuery]) -> set[str]:
    """The names in all replies that come in time, whatever a server calls a name."""
    from threading import Thread

    deadline = time.monotonic() + LIMIT
    found: list[str] = []

    def work(question: SuggestionQuery) -> None:
        with suppress(Exception):
            found.extend(_get(question))

    # Daemons: the look-up of a host cannot be stopped, and must not be waited for.
    threads = [Thread(target=work, args=(question,), daemon=True) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return set(found)


def _get(question: SuggestionQuery) -> list[str]:
    import json

    with closing(_connection(question)) as connection:
        connection.request(
            "GET", question.path, headers={"Accept": "application/vnd.nsq; version=1.0"}
        )
        reply = connection.getresponse()
        said = json.loads(reply.read(_MAX_REPLY)) if reply.status == 200 else {}
    found = said.get("data", said)
    return _read_nodes(found) if question.nodes else _read_names(found, question.topic)


def _connection(question: SuggestionQuery) -> HTTPConnection:
    from http.client import HTTPConnection, HTTPSConnection

    if not question.tls:
        return HTTPConnection(*question.address, timeout=LIMIT)
    from ssl import create_default_context

    context = create_default_context(cafile=question.cafile or None)
    return HTTPSConnection(*question.address, timeout=LIMIT, context=context)


def _read_names(reply: dict[str, Any], topic: str) -> list[str]:
    """Names in a reply of nsqlookupd, which are texts, or of nsqd, which are in objects."""
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
