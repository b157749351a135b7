"""What a hostile server calls things drives no terminal, forges no line and ends no command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.dead import answering

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.names import Address
    from tests.support.process import Cli

NAMES = ["good", "\x1b[2J", "two\nlines", "bell\x07", "\ud800", "x" * 100]


@pytest.fixture
def server() -> Iterator[Address]:
    """It is an nsqlookupd and an nsqd."""
    names = {"topics": NAMES, "channels": NAMES, "producers": []}
    channels = [{"channel_name": name, "depth": 1} for name in NAMES]
    topics = [{"topic_name": name, "depth": 1, "channels": channels} for name in NAMES]
    topics.append({"topic_name": "deep", "depth": 10**4000, "channels": []})
    stats = {"version": "1\x07", "health": "OK", "start_time": 5, "topics": topics}
    info = {"version": "1.3.0", "broadcast_address": "a", "tcp_port": 1, "http_port": 2}
    answers = {"/topics": names, "/channels": names, "/lookup": names, "/nodes": names}
    with answering({**answers, "/stats": stats, "/info": info}) as address:
        yield address


@pytest.mark.parametrize("words", [("topics",), ("channels", "good")])
def test_only_names_that_can_be_are_listed(
    nsqtools_cli: Cli, server: Address, words: tuple[str, ...]
) -> None:
    where = ("--lookupd-http-address", str(server))
    ended = nsqtools_cli("lookup", *words, *where)
    assert (ended.code, ended.stdout) == (0, b"good\n"), ended.stderr
    assert all(line.isprintable() for line in ended.stderr.splitlines())
    assert json.loads(nsqtools_cli("lookup", *words, "--json", *where).stdout) == {
        words[0]: ["good"]
    }


@pytest.mark.parametrize(
    "form",
    [
        ("--once",),
        ("--once", "--json"),
        ("--once", "--csv"),
        ("--check",),
    ],
    ids="".join,
)
def test_numbers_and_names_that_cannot_be_cost_themselves(
    nsqtools_cli: Cli, server: Address, form: tuple[str, ...]
) -> None:
    ended = nsqtools_cli("stats", *form, "--nsqd-http-address", str(server))
    text = ended.stdout.decode()
    assert ended.code == 0, ended.stderr
    assert all(line.isprintable() for line in text.replace("\t", " ").splitlines())
    assert "deep" not in text
    assert "lines" not in text
