"""Names for a TAB press that only a server or the configuration file knows.

Servers are asked all at once, for ``LIMIT`` seconds in total, and through bare sockets: httpx takes
longer to load than they to answer. They are told no secret.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.cli.configfile import Source, profile_names
from nsqtools.cli.settings import Setting, Settings, groups_of
from nsqtools.config import LookupOptions
from nsqtools.names import (
    LOOKUPD_HTTP_PORT,
    NSQD_HTTP_PORT,
    NSQD_TCP_PORT,
    Address,
    is_valid_name,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from socket import socket
    from ssl import SSLSocket

    import click

    from nsqtools.config.option import Values

LIMIT = 0.3

_LOOKUPD = "lookupd_http_address"

# Options that name servers: the default port, and how far from it the port of HTTP is.
_SERVERS = {
    _LOOKUPD: (LOOKUPD_HTTP_PORT, 0),
    "nsqd_http_address": (NSQD_HTTP_PORT, 0),
    "nsqd_tcp_address": (NSQD_TCP_PORT, 1),
}

_HERE = {_LOOKUPD: ("127.0.0.1",), "nsqd_http_address": ("127.0.0.1",)}

_READ_SIZE = 65536


class Question(NamedTuple):
    """A GET of ``path``, with its query, about all topics or the channels of one.

    For https ``cafile`` names the CAs to trust, or is empty for the system's.
    """

    tls: bool
    address: Address
    path: str
    topic: str
    cafile: str


def names(values: Values, ctx: click.Context) -> tuple[str, ...]:
    """Names of this kind, sorted; what cannot be found out in time is left out silently.

    ``ctx`` is of the command that is being typed: its options say which servers are meant, and for
    channels which topics.
    """
    with suppress(Exception):
        if values == "profile":
            return tuple(sorted(profile_names(ctx)))
        # The shell would run what else a server may say.
        return tuple(sorted(filter(is_valid_name, ask(questions(values, ctx)))))
    return ()


def questions(values: Values, ctx: click.Context) -> list[Question]:
    """What to ask of the servers that the strongest source gives, or else of those of this host.

    Raises ConfigError for an address that is none, and for a wrong configuration file.
    """
    settings = _settings(ctx)
    cafile = settings["tls_root_ca_file"].value
    topics = settings["topic"].value if "topic" in settings else ctx.params.get("topic")
    if values == "topic":
        topics = ""
    given = {name: settings[name] for name in _SERVERS if name in settings and settings[name].value}
    servers = _HERE
    if given:
        ranks = list(Source)
        name = min(given, key=lambda name: ranks.index(given[name].source))
        servers = {name: given[name].value}
    return [
        _question(name, text, topic, cafile)
        for topic in ([topics] if isinstance(topics, str) else topics or ())
        for name, texts in servers.items()
        for text in texts
    ]


def ask(questions: Sequence[Question]) -> set[str]:
    """The names in all replies that come in time."""
    from threading import Thread

    deadline = time.monotonic() + LIMIT
    found: list[str] = []

    def work(question: Question) -> None:
        with suppress(Exception):
            found.extend(_get(question))

    # Daemons: the look-up of a host cannot be stopped, and must not be waited for.
    threads = [Thread(target=work, args=(question,), daemon=True) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return set(found)


def _settings(ctx: click.Context) -> dict[str, Setting]:
    """The options of the command, and where nsqlookupd is even if it has no such option."""
    groups = {"": (LookupOptions, {}), **groups_of(ctx.command)}
    settings = Settings(ctx, groups)
    found: dict[str, Setting] = {}
    for keyword in groups:
        found |= settings.of(keyword)
    variable = f"NSQTOOLS_{_LOOKUPD.upper()}"
    if _LOOKUPD not in ctx.params and os.environ.get(variable):
        found[_LOOKUPD] = Setting(os.environ[variable].split(), Source.ENVIRONMENT, variable)
    return found


def _question(server: str, text: str, topic: str, cafile: str) -> Question:
    from urllib.parse import urlencode, urlsplit

    port, step = _SERVERS[server]
    base = urlsplit(text if "://" in text else f"http://{text}")
    address = Address.parse(base.netloc, port)
    query = {"topic": topic} if topic else {}
    path = "/channels" if topic else "/topics"
    if server != _LOOKUPD:
        path = "/stats"
        query |= {"format": "json", "include_clients": "false", "include_mem": "false"}
    joined = "&".join(filter(None, (base.query, urlencode(query))))
    return Question(
        tls=base.scheme == "https",
        address=Address(address.host, address.port + step),
        path=f"{base.path.rstrip('/')}{path}?{joined}",
        topic=topic,
        cafile=cafile,
    )


def _get(question: Question) -> list[str]:
    import json
    from socket import create_connection

    request = (
        f"GET {question.path} HTTP/1.0\r\nHost: {question.address}\r\n"
        "Accept: application/vnd.nsq; version=1.0\r\n\r\n"
    )
    with (
        create_connection(question.address, LIMIT) as plain,
        _over_tls(plain, question) if question.tls else plain as connection,
    ):
        connection.sendall(request.encode())
        data = bytearray()
        while chunk := connection.recv(_READ_SIZE):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    if head.split(None, 2)[1] != b"200":
        return []
    reply = json.loads(body)
    return _read(reply.get("data", reply), question.topic)


def _over_tls(plain: socket, question: Question) -> SSLSocket:
    from ssl import create_default_context

    context = create_default_context(cafile=question.cafile or None)
    return context.wrap_socket(plain, server_hostname=question.address.host)


def _read(reply: dict[str, Any], topic: str) -> list[str]:
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
