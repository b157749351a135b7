"""Completes names at a TAB press: from servers, files or a table."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from nsqtools.cli.configfile import Source, load
from nsqtools.cli.resolver import ResolvedValue, Resolver, SelectedFile
from nsqtools.cli.tree import groups_of
from nsqtools.config.admin import LookupOptions
from nsqtools.config.program import ConfigFileOptions
from nsqtools.config.records import DECODERS
from nsqtools.names import LOOKUPD_HTTP_PORT, NSQD_HTTP_PORT, NSQD_TCP_PORT, Address, is_valid_name
from nsqtools.net.http.suggestions import SuggestionQuery, ask

if TYPE_CHECKING:
    import click

    from nsqtools.cli.tree import Groups
    from nsqtools.config.option import Values

_LOOKUPD = "lookupd_http_address"

# Options for servers: the default port, and the distance to the HTTP port.
_SERVERS = {
    _LOOKUPD: (LOOKUPD_HTTP_PORT, 0),
    "nsqd_http_address": (NSQD_HTTP_PORT, 0),
    "nsqd_tcp_address": (NSQD_TCP_PORT, 1),
}

_HERE: dict[str, tuple[str, ...]] = {_LOOKUPD: ("127.0.0.1",), "nsqd_http_address": ("127.0.0.1",)}


def names(values: Values, ctx: click.Context) -> tuple[str, ...]:
    """Names of this kind, sorted.

    Names not found in time are silently omitted. ``ctx`` is the context of the typed command: its
    options select the file, the servers, and for channels the topics.
    """
    if values == "decoder":
        return DECODERS
    with suppress(Exception):
        if values == "profile":
            return tuple(sorted(_profiles(ctx)))
        if values == "code":
            from nsqtools.engine.doctor.findings import BY_CODE

            return tuple(BY_CODE)
        if folder := ctx.params.get("data_path"):
            return tuple(sorted(_in_files(folder, values, ctx.params.get("topic"))))
        # The shell would execute any other text from a server.
        valid = is_address if values == "node" else is_valid_name
        return tuple(sorted(filter(valid, ask(questions(values, ctx)))))
    return ()


def _profiles(ctx: click.Context) -> list[str]:
    """All profiles of the file, even if the line selects a profile."""
    file = load(Resolver(ctx, {"": ConfigFileOptions}).values("")["config"].value or None)
    return file.profiles if file else []


def _in_files(folder: str, values: Values, topic: str | None) -> set[str]:
    """The topics with disk queues, or the channels of this topic with disk queues."""
    from nsqtools.records.diskqueue.queuefiles import disk_queues

    found, _ = disk_queues(folder)
    if values == "topic":
        return {each.topic for each in found}
    return {each.channel for each in found if each.topic == topic and each.channel}


def questions(values: Values, ctx: click.Context) -> list[SuggestionQuery]:
    """Requests to the servers given by options, or else to the servers of this host.

    Raises ConfigError for an invalid address or configuration file.
    """
    settings = _resolved(ctx)
    ca, cert, key = (settings[name].value for name in ("tls_root_ca_file", "tls_cert", "tls_key"))
    topics = settings["topic"].value if "topic" in settings else ctx.params.get("topic")
    if values in ("topic", "node"):
        topics = ""
    servers_of = (_LOOKUPD,) if values == "node" else _SERVERS
    addresses = {name: settings[name] for name in servers_of if name in settings}
    configured = {n: s for n, s in addresses.items() if s.source is not Source.DEFAULT}
    servers = {name: _HERE[name] for name in servers_of if name in _HERE}
    if configured:
        ranks = list(Source)
        name = min(configured, key=lambda name: ranks.index(configured[name].source))
        servers = {name: configured[name].value or ()}  # None for an invalid flag
    return [
        _question(name, text, topic, (ca, cert, key), nodes=values == "node")
        for topic in ([topics] if isinstance(topics, str) else topics or ())
        for name, texts in servers.items()
        for text in texts
    ]


def _resolved(ctx: click.Context) -> dict[str, ResolvedValue]:
    """The options of the command, and nsqlookupd's address even if it has no such option."""
    groups: Groups = {"": LookupOptions, **groups_of(ctx.command)}
    resolver = Resolver(ctx, groups, SelectedFile.of(ctx).tables(ctx))
    found: dict[str, ResolvedValue] = {}
    for keyword in groups:
        found |= resolver.values(keyword)
    return found


def is_address(text: str) -> bool:
    """Whether the text is ``host:port``, with brackets around IPv6, and thus safe in a shell."""
    return re.fullmatch(r"[a-zA-Z0-9._:\[\]-]+", text) is not None


def _question(
    server: str, text: str, topic: str, files: tuple[str, str, str], *, nodes: bool
) -> SuggestionQuery:
    from urllib.parse import urlencode, urlsplit

    port, step = _SERVERS[server]
    base = urlsplit(text if "://" in text else f"http://{text}")
    address = Address.parse(base.netloc, port)
    query = {"topic": topic} if topic else {}
    path = "/nodes" if nodes else "/channels" if topic else "/topics"
    if server != _LOOKUPD:
        path = "/stats"
        query |= {"format": "json", "include_clients": "false", "include_mem": "false"}
    joined = "&".join(filter(None, (base.query, urlencode(query))))
    return SuggestionQuery(
        tls=base.scheme == "https",
        address=Address(address.host, address.port + step),
        path=f"{base.path.rstrip('/')}{path}?{joined}",
        topic=topic,
        files=files,
        nodes=nodes,
    )
