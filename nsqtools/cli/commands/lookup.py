"""``nsqtools lookup``: the answers of several nsqlookupds, united."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from nsqtools.cli.options import CommandGroup, argument, options
from nsqtools.cli.output import print_json, print_json_list, print_rows
from nsqtools.cli.remotes import client_limits
from nsqtools.config.admin import LookupOptions
from nsqtools.config.option import Option
from nsqtools.errors import NSQError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from nsqtools.net.http.daemons import Lookupd
    from nsqtools.net.http.replies import Lookup, Registration

R = TypeVar("R")

_topic = argument("topic", Option("text", "A topic.", values="topic"))

_ELSEWHERE = "--lookupd-http-address 10.0.0.1:4161"


@click.group("lookup", cls=CommandGroup)
def lookup() -> None:
    """List the topics, channels and nsqds of nsqlookupd.

    All given nsqlookupds are queried, and their answers are merged. An nsqlookupd without an answer
    causes a warning. The exit status is 3 if no nsqlookupd answers, and 1 if no nsqlookupd knows
    the topic.
    """


def _command(name: str, example: str, words: str = "") -> Callable[[Any], click.Command]:
    """Add a command with an example, and the same example for another nsqlookupd."""
    line = f"nsqtools lookup {name} {words}".rstrip()
    return lookup.command(
        name,
        essential="lookupd_http_address json timeout tls_root_ca_file profile verbose",
        examples=((example, line), ("Those of another nsqlookupd", f"{line} {_ELSEWHERE}")),
    )


@_command("topics", "All topics, one per line")
@options()
def topics(*, options: LookupOptions) -> None:
    """List all topics."""
    names = _ask(options, lambda client: client.topics())
    _print_names("topics", _united(names), options)


@_command("channels", "The channels of a topic", "events")
@_topic
@options()
def channels(*, topic: str, options: LookupOptions) -> None:
    """List the channels of a topic."""
    found = _look_up(options, topic)
    _print_names("channels", _united(reply.channels for reply in found), options)


@_command("producers", "The nsqds that have a topic", "events")
@_topic
@options()
def producers(*, topic: str, options: LookupOptions) -> None:
    """List the nsqds of a topic."""
    from nsqtools.net.http.daemons import union_producers

    found = _look_up(options, topic)
    _print_producers(union_producers(reply.producers for reply in found).values(), options)


@_command("nodes", "All nsqds with their topics, as JSON", "--json")
@options()
def nodes(*, options: LookupOptions) -> None:
    """List all nsqds, with their topics and tombstones."""
    from nsqtools.net.http.daemons import union_producers

    found = _ask(options, lambda client: client.nodes())
    _print_producers(union_producers(found).values(), options, topics=True)


def _look_up(options: LookupOptions, topic: str) -> list[Lookup]:
    """The answers about a topic; raises NSQError if no nsqlookupd knows it."""
    found = _ask(options, lambda client: client.lookup(topic))
    if not any(reply.known for reply in found):
        raise NSQError(f"no nsqlookupd knows topic {topic}: see nsqtools lookup topics")
    return found


def _ask(options: LookupOptions, call: Callable[[Lookupd], Awaitable[R]]) -> list[R]:
    """The answers of all nsqlookupds; raises UnreachableError if no nsqlookupd answers."""
    import logging

    from nsqtools.engine.lookup import ask_lookupds
    from nsqtools.tasks import run_loop

    limits = {**client_limits(options), "request_timeout": options.timeout}  # the only request
    answers = run_loop(ask_lookupds(options.lookupd_http_address, call, **limits))
    for _, error in answers.silent:
        logging.getLogger(__name__).warning("nsqlookupd %s", error)
    return answers.values


def _united(names: Iterable[Sequence[str]]) -> list[str]:
    return sorted({name for some in names for name in some})


def _print_names(key: str, names: list[str], options: LookupOptions) -> None:
    if options.json:
        print_json({key: names})
    else:
        click.echo("".join(f"{name}\n" for name in names), nl=False)


def _print_producers(
    found: Iterable[Registration], options: LookupOptions, *, topics: bool = False
) -> None:
    """Print nsqds. The TCP address is first, for ``cut -f1``."""
    ordered = sorted(found, key=lambda producer: (producer.host, producer.tcp_port))
    if options.json:
        print_json_list("producers", (_as_json(each, topics=topics) for each in ordered))
        return
    header = ["tcp", "http", "hostname", "version", *(["topics"] if topics else [])]
    rows = (
        [str(each.tcp), str(each.http), each.hostname, each.version]
        + ([_topics(each)] if topics else [])
        for each in ordered
    )
    print_rows(header, rows)


def _topics(producer: Registration) -> str:
    """Topics, separated by commas, with tombstones marked; old nsqlookupds send no tombstones."""
    marks = (*producer.tombstones, *[False] * len(producer.topics))
    return ",".join(
        f"{topic} (tombstoned)" if mark else topic
        for topic, mark in zip(producer.topics, marks, strict=False)
    )


def _as_json(producer: Registration, *, topics: bool) -> dict[str, Any]:
    fields = ["broadcast_address", "hostname", "remote_address", "tcp_port", "http_port", "version"]
    if topics:
        fields += ["topics", "tombstones"]
    return {name: getattr(producer, name) for name in fields}
