"""What the HTTP clients ask, and how they read the answers of old and new servers."""

import asyncio
import json
from collections.abc import Callable

import pytest

from nsqtools.errors import ConfigError
from nsqtools.names import Address
from nsqtools.net.http.api import URL, parse_url
from nsqtools.net.http.daemons import Lookupd, ask_all
from nsqtools.net.http.replies import Lookup
from tests.support.scripted_http import (
    NODE,
    TOPIC,
    envelope,
    failure,
    lookupd,
    nsqd,
    reply,
    serving,
    v1,
    v1_empty,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" h:1 ", URL("http", Address("h", 1))),
        ("httpd01:1", URL("http", Address("httpd01", 1))),
        ("h", URL("http", Address("h", 4161))),
        ("[::1]:1", URL("http", Address("::1", 1))),
        ("https://[::1]", URL("https", Address("::1", 4161))),
        ("HTTPS://h:1/", URL("https", Address("h", 1), "/")),
        ("http://h:1/a%20b", URL("http", Address("h", 1), "/a%20b")),
        ("h:1/l?x=1&y=", URL("http", Address("h", 1), "/l", (("x", "1"), ("y", "")))),
    ],
)
def test_addresses_are_read_with_or_without_a_scheme(text: str, expected: URL) -> None:
    assert parse_url(text, 4161) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "http://h", "http:///lookup", "ftp://h:1", "h:65536", "h:port", "::1:4161"),
        *("http://[::1", "a b:1", "h\x1b:1", f"{'é' * 70}:1", "http://h:1/a\x7f"),
        "http://user:hidden@h:1",
    ],
)
def test_what_is_no_address_is_a_configuration_error_of_one_line_without_a_password(
    text: str,
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(text)
    assert str(raised.value).isprintable()
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize("token", ["", "s3crët"])
async def test_a_request_asks_for_version_1_and_for_no_compression(token: str) -> None:
    async with (
        serving(v1({"topics": ["b", "a"]})) as server,
        lookupd(server, token=token) as client,
    ):
        assert await client.topics() == ["b", "a"]
    lines = server.head.split("\r\n")
    assert lines[0] == "GET /topics HTTP/1.1"
    assert "Accept: application/vnd.nsq; version=1.0" in lines
    assert "Accept-Encoding: identity" in lines
    assert f"Host: {server.address}" in lines
    assert ("Authorization: Bearer s3crët" in lines) == bool(token)
    assert ("authorization" in server.head.lower()) == bool(token)


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("127.0.0.1", "127.0.0.1:4161"),
        ("::1", "[::1]:4161"),
        ("fe80::1%eth0", "[fe80::1]:4161"),
        ("bücher.test", "xn--bcher-kva.test:4161"),
    ],
)
def test_a_request_names_its_host_as_name_servers_do(host: str, named: str) -> None:
    client = lookupd(f"https://{Address(host, 4161)}")
    assert f"Host: {named}\r\n".encode() in client._fields


@pytest.mark.parametrize(
    ("suffix", "targets"),
    [
        ("", ["/lookup?topic=t", "/nodes", "/change?topic=t"]),
        ("/", ["/lookup?topic=t", "/nodes", "/change?topic=t"]),
        ("?dc=x%26y", ["/lookup?dc=x%26y&topic=t", "/nodes?dc=x%26y", "/change?dc=x%26y&topic=t"]),
        ("/a/find?b=1", ["/a/find?b=1&topic=t", "/a/nodes?b=1", "/a/change?b=1&topic=t"]),
        ("/a/?topic=other", ["/a/?topic=t", "/a/nodes?topic=other", "/a/change?topic=t"]),
        ("/a%2Fb/lookup", ["/a%2Fb/lookup?topic=t", "/a%2Fb/nodes", "/a%2Fb/change?topic=t"]),
    ],
)
async def test_path_and_query_of_a_lookupd_address_are_kept(
    suffix: str, targets: list[str]
) -> None:
    answer = v1({"channels": [], "producers": []})
    async with serving(answer) as server, lookupd(f"{server.address}{suffix}") as client:
        await client.lookup("t")
        await client.nodes()
        await client.change("change", topic="t")
    assert [head.split()[1] for head in server.heads] == targets


@pytest.mark.parametrize("form", [v1, envelope, lambda data: reply(json.dumps(data))])
async def test_all_forms_of_replies_read_the_same(form: Callable[[object], bytes]) -> None:
    async with (
        serving(form({"channels": ["c"], "producers": [NODE]})) as server,
        lookupd(server) as client,
    ):
        assert await client.channels("t") == ["c"]
        found = await client.lookup("t")
        assert found.channels == ("c",)
        assert [producer.tcp for producer in found.producers] == [Address("nsqd.test", 4150)]
        assert await client.nodes() == list(found.producers)
    async with serving(form({"topics": [TOPIC]})) as server, nsqd(server) as nsqd_client:
        (topic,) = await nsqd_client.stats("t")
        assert (topic.name, topic.channels[0].in_flight) == ("t", 3)


@pytest.mark.parametrize(
    "answer",
    [
        v1({"message": "TOPIC_NOT_FOUND"}, 404),
        envelope(None, 404, "TOPIC_NOT_FOUND", 404),
        envelope(None, 404, "TOPIC_NOT_FOUND"),
        envelope(None, 500, "INVALID_ARG_TOPIC", 500),
    ],
)
async def test_an_unknown_topic_is_an_empty_answer(answer: bytes) -> None:
    async with serving(answer) as server, lookupd(server) as client:
        assert await client.lookup("t") == Lookup((), (), known=False)
        assert await client.channels("t") == []


async def test_a_report_asks_for_a_topic_and_a_channel() -> None:
    data = {"version": "1.3.0", "health": "OK", "start_time": 5, "topics": [TOPIC]}
    async with serving(v1(data)) as server, nsqd(server) as client:
        said = await client.report("t", include_clients=True)
        assert (said.version, said.health, said.start_time) == ("1.3.0", "OK", 5)
        assert [topic.name for topic in said.topics] == ["t"]
        assert "include_clients=true" in server.target
        server.heads.clear()
        await client.report("t", "c")
        assert server.target.endswith("&topic=t&channel=c")


@pytest.mark.parametrize("answer", [v1_empty(), reply(""), envelope(None), v1({})])
async def test_a_change_is_a_post_whose_names_are_escaped(answer: bytes) -> None:
    async with serving(answer) as server, nsqd(server) as client:
        await client.change("channel/create", topic="t", channel="c#ephemeral")
    assert server.head.startswith("POST /channel/create?topic=t&channel=c%23ephemeral HTTP/1.1")
    assert "\r\nContent-Length: 0\r\n" in server.head


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (v1({"message": "CHANNEL_NOT_FOUND"}, 404), 404, "CHANNEL_NOT_FOUND"),
        (envelope(None, 404, "CHANNEL_NOT_FOUND", 404), 404, "CHANNEL_NOT_FOUND"),
        (envelope(None, 500, "INVALID_ARG_CHANNEL"), 500, "INVALID_ARG_CHANNEL"),
        (reply("404 page not found", 404), 404, "404 page not found"),
        (reply("<html>"), 200, ""),
    ],
)
async def test_a_change_that_is_refused_tells_the_servers_own_word(
    answer: bytes, status: int, code: str
) -> None:
    async with serving(answer) as server:
        client = nsqd(server)
        error = await failure(client, client.change("channel/delete", topic="t"))
    assert (error.status, error.code) == (status, code)
    assert error.text.startswith("/channel/delete: ")


async def test_a_dead_server_hides_no_others_answer() -> None:
    async with serving(b"") as dead:
        pass
    async with (
        serving(v1({"topics": ["a"]})) as first,
        serving(v1({"message": "INTERNAL_ERROR"}, 500)) as broken,
        serving(v1({"topics": ["b"]})) as last,
        lookupd(first) as one,
        lookupd(dead) as two,
        lookupd(broken) as three,
        lookupd(last) as four,
    ):
        answers = await ask_all([one, two, three, four], lambda client: client.topics())
    assert answers.answers == [(first.address, ["a"]), (last.address, ["b"])]
    assert answers.values == [["a"], ["b"]]
    assert [address for address, _ in answers.silent] == [dead.address, broken.address]
    assert [error.status for _, error in answers.silent] == [0, 500]


async def test_an_error_of_ours_ends_the_requests_to_other_servers() -> None:
    clients = [lookupd(f"127.0.0.1:{port}") for port in (1, 2)]

    async def call(client: Lookupd) -> None:
        await asyncio.sleep(0)
        if client is clients[0]:
            raise RuntimeError
        await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await ask_all(clients, call)
    assert asyncio.all_tasks() == {asyncio.current_task()}
