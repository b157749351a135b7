"""What a hostile server calls things drives no terminal, forges no line and ends no command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.dead import answering

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.names import Address
    from tests.support.process import Cli

NAMES = ["good", "\x1b[2J", "two\nlines", "bell\x07", "\ud800", "x" * 100]


NODE = {
    "broadcast_address": "127.0.0.1",
    "tcp_port": 1,
    "http_port": 1,
    "hostname": "host\x1b[2J",
    "remote_address": "two\nlines:1",
    "version": "1\x07",
    "topics": ["good"],
    "tombstones": [False],
}


@pytest.fixture
def server() -> Iterator[Address]:
    """It is an nsqlookupd and an nsqd."""
    names = {"topics": NAMES, "channels": NAMES, "producers": [NODE]}
    channels = [{"channel_name": name, "depth": 1} for name in NAMES]
    topics = [{"topic_name": name, "depth": 1, "channels": channels} for name in NAMES]
    topics.append({"topic_name": "deep", "depth": 10**4000, "channels": []})
    stats = {"version": "1\x07", "health": "OK", "start_time": 5, "topics": topics}
    answers = {"/topics": names, "/channels": names, "/lookup": names, "/nodes": names}
    with answering({**answers, "/stats": stats, "/info": NODE}) as address:
        yield address


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.replace("\t", " ").splitlines())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("lookup", "nodes", "--lookupd-http-address"), 0),
        (("doctor", "--topic", "good", "--lookupd-http-address"), 1),
        (("doctor", "--topic", "good", "--nsqd-http-address"), 1),
    ],
)
def test_who_a_server_says_that_it_is_is_shown_without_its_escapes(
    nsqtools_cli: Cli, server: Address, words: tuple[str, ...], code: int
) -> None:
    ended = nsqtools_cli(*words, str(server))
    text = ended.stdout.decode()
    assert ended.code == code, text
    assert is_harmless(text + ended.stderr)
    assert "127.0.0.1:1" in text
    assert not any(line.startswith("lines") for line in text.splitlines())
