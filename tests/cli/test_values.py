"""Whom TAB asks for names, and what it makes of the answers."""

import asyncio
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from nsqtools.cli import cli
from nsqtools.cli.tree import walk
from nsqtools.cli.values import names, questions
from nsqtools.config.option import Values
from nsqtools.net.http.suggestions import ask
from tests.support.diskqueues import QueueFiles
from tests.support.eventually import eventually
from tests.support.scripted_http import serving
from tests.support.tls import Certificate, Certificates
from tests.support.webserver import HANG, Answer, Request, WebServer

NODES = walk(cli)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file of this test's own; a busy machine keeps the limit for answers."""
    monkeypatch.setattr("nsqtools.net.http.suggestions.LIMIT", 30.0)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "nsqtools").mkdir()
    return tmp_path / "nsqtools" / "config.toml"


def typed(*words: str) -> click.Context:
    """The context of a command that is being typed."""
    line = ["nsqtools", *words]
    node = [
        each
        for each in NODES
        if each.command_path.split() == line[: len(each.command_path.split())]
    ][-1]
    args = line[len(node.command_path.split()) :]
    return node.command.make_context(
        node.ctx.info_name, args, node.ctx.parent, resilient_parsing=True
    )


def asked(values: Values, *words: str) -> list[str]:
    return [
        f"{'https://' if question.tls else ''}{question.address}{question.path}".replace(ALL, "")
        for question in questions(values, typed(*words))
    ]


ALL = "format=json&include_clients=false&include_mem=false"
STATS = f"/stats?{ALL}"
OF_EVENTS = f"/stats?topic=events&{ALL}"


@pytest.mark.parametrize(
    ("values", "line", "urls"),
    [
        ("topic", "tail", "127.0.0.1:4161/topics? 127.0.0.1:4151/stats?"),
        ("topic", "pub -nsqd-tcp-address=a:5150", "a:5151/stats?"),
        (
            "topic",
            "tail --lookupd-http-address a --lookupd-http-address https://b:99/nsq/?x=y",
            "a:4161/topics? https://b:99/nsq/topics?x=y",
        ),
        ("channel", "tail", ""),
        (
            "channel",
            "lookup channels events",
            "127.0.0.1:4161/channels?topic=events 127.0.0.1:4151/stats?topic=events&",
        ),
        (
            "channel",
            "channel delete events --lookupd-http-address a",
            "a:4161/channels?topic=events",
        ),
        ("channel", "doctor --topic events --nsqd-tcp-address a", "a:4151/stats?topic=events&"),
        (
            "channel",
            "tail --topic=events --topic x#ephemeral --nsqd-tcp-address a",
            "a:4151/stats?topic=events& a:4151/stats?topic=x%23ephemeral&",
        ),
        ("node", "node tombstone events", "127.0.0.1:4161/nodes?"),
    ],
)
def test_the_servers_on_the_line_are_asked(values: Values, line: str, urls: str) -> None:
    assert asked(values, *line.split()) == urls.split()


def test_servers_come_from_the_strongest_source(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[defaults]\nlookupd-http-address = "file"\n[tail]\ntopic = "events"\n')
    assert asked("topic", "tail") == ["file:4161/topics?"]
    assert asked("channel", "tail") == ["file:4161/channels?topic=events"]
    monkeypatch.setenv("NSQTOOLS_LOOKUPD_HTTP_ADDRESS", "env1 env2:80")
    assert asked("topic", "tail") == ["env1:4161/topics?", "env2:80/topics?"]
    assert asked("topic", "tail", "--nsqd-tcp-address", "a") == ["a:4151/stats?"]
    assert asked("topic", "tail", "--lookupd-http-address", "a") == ["a:4161/topics?"]
    # No other server takes the place of an address that cannot be read.
    assert asked("topic", "tail", "--lookupd-http-address", ":x:") == []


@contextmanager
def server(
    replies: Mapping[str, object], tls: Certificate | None = None
) -> Iterator[tuple[str, ...]]:
    """Answers GET by path, else with 404; the words of the line that make TAB ask it."""

    def answer(request: Request) -> Answer:
        path = request.target.rstrip("?")
        body = json.dumps(replies.get(path, {"topics": ["wrong"]})).encode()
        return Answer(status=200 if path in replies else 404, body=body)

    with WebServer(answer, tls=tls) as running:
        yield "--lookupd-http-address", running.url("")


CHANNELS = [{"channel_name": "archive"}, {"channel_name": "x#ephemeral"}]
TOPICS = {
    "topics": [
        {"topic_name": "events", "channels": CHANNELS},
        {"topic_name": "other", "channels": [{"channel_name": "no"}]},
    ]
}
HOSTS = ("web1", "::1", "$(reboot)")
PRODUCERS = {"producers": [{"broadcast_address": host, "http_port": 4151} for host in HOSTS]}
NASTY = ["$(reboot)", "a b", "a\tb", "", "good", "`id`", "x" * 65]
OLD = {"status_code": 200, "status_txt": "OK", "data": {"topics": ["old"]}}


@pytest.mark.parametrize(
    ("values", "line", "path", "reply", "found"),
    [
        ("topic", "tail", "/topics", {"topics": None}, ()),
        ("topic", "tail", "/topics", OLD, ("old",)),
        ("topic", "tail", "/topics", {"topics": NASTY}, ("good",)),
        ("topic", "tail", "/topics", {"topics": ["good", 1]}, ()),
        ("topic", "tail", "/topics", [], ()),
        ("topic", "tail", "/topics", {}, ()),
        ("topic", "tail --nsqd-http-address $URL", STATS, TOPICS, ("events", "other")),
        (
            "channel",
            "tail --topic events --nsqd-http-address $URL",
            OF_EVENTS,
            TOPICS,
            ("archive", "x#ephemeral"),
        ),
        ("node", "node tombstone events", "/nodes", PRODUCERS, ("[::1]:4151", "web1:4151")),
    ],
)
def test_only_valid_names_of_nsqd_and_nsqlookupd_reach_the_shell(
    values: Values, line: str, path: str, reply: object, found: tuple[str, ...]
) -> None:
    with server({path: reply}) as (option, url):
        words = line.replace("$URL", url).split()
        asked = () if url in words else (option, url)
        assert names(values, typed(*words, *asked)) == found


def test_a_server_that_refuses_or_is_gone_costs_only_its_own_names() -> None:
    gone = ("--lookupd-http-address", "127.0.0.1:1")
    with (
        server({"/topics": {"topics": ["b", "a"]}}) as one,
        server({"/topics": {"topics": ["c#ephemeral", "b"]}}) as two,
        server({}) as bad,
    ):
        line = typed("tail", *bad, *gone, *one, *two)
        assert names("topic", line) == ("a", "b", "c#ephemeral")


def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqtools.net.http.suggestions.LIMIT", 0.3)
    with WebServer(HANG) as silent, server({"/topics": {"topics": ["a"]}}) as good:
        line = ("tail", "--lookupd-http-address", str(silent.address), *good)
        assert eventually(lambda: ask(questions("topic", typed(*line)))) == {"a"}


async def test_a_reply_may_end_with_its_connection() -> None:
    async with serving(b'HTTP/1.0 200 OK\r\n\r\n{"topics": ["a"]}') as proxy:
        line = typed("tail", "--lookupd-http-address", str(proxy.address))
        assert await asyncio.to_thread(names, "topic", line) == ("a",)


def test_https_is_verified_with_the_ca_of_the_line(certificates: Certificates) -> None:
    with server({"/topics": {"topics": ["a"]}}, certificates.server) as known:
        trusted = ("--tls-root-ca-file", str(certificates.ca))
        assert names("topic", typed("tail", *known, *trusted)) == ("a",)
        assert names("topic", typed("tail", *known)) == ()


def test_https_with_the_client_certificate_of_the_line(certificates: Certificates) -> None:
    with WebServer(Answer(body=b'{"topics": ["a"]}'), tls=certificates.server) as strict:
        assert strict.tls
        strict.tls.load_verify_locations(certificates.ca)
        strict.tls.verify_mode = ssl.CERT_REQUIRED
        asked = ("--lookupd-http-address", strict.url(""), "--tls-root-ca-file", certificates.ca)
        line = ("topic", "delete", *map(str, asked))
        assert names("topic", typed(*line, *certificates.client.options())) == ("a",)
        assert names("topic", typed(*line)) == ()


def test_topics_and_channels_of_a_data_path_are_those_with_files(tmp_path: Path) -> None:
    for name in ("b", "a:c", "a:d", "a", "a b"):
        QueueFiles(tmp_path, name).write(0, b"")
    cat = ("queue", "cat", str(tmp_path))
    assert names("topic", typed(*cat)) == ("a", "b")
    assert names("channel", typed(*cat, "--topic", "a")) == ("c", "d")
    assert names("channel", typed(*cat)) == ()
    assert names("topic", typed("queue", "cat", str(tmp_path / "nowhere"))) == ()
