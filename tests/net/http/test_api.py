"""Every way in which a server fails to answer is one line that names it."""

import json
import ssl
import tracemalloc
from typing import Any

import pytest

from nsqtools.config.connection import ClientConfig
from nsqtools.errors import HTTPError
from nsqtools.net.http.daemons import Lookupd
from nsqtools.net.tls import client_context
from tests.support.scripted_http import V1, OneReply, envelope, failure, lookupd, reply, serving, v1
from tests.support.tls import Certificates

HALF = reply("x" * 100)[:-50]
WANTS_TLS = v1({"message": "TLS_REQUIRED", "https_port": 4152}, 403)
MOVED = reply("", 302, "Location: http://there:1/topics\r\n")


async def lookup_failure(server: OneReply | str, **options: Any) -> HTTPError:
    client = lookupd(server, **options)
    return await failure(client, client.lookup("t"))


@pytest.mark.parametrize(
    ("answer", "how", "told", "words"),
    [
        (WANTS_TLS, {}, (403, "TLS_REQUIRED", ""), "https://127.0.0.1:4152"),
        (envelope(None, 403, "TLS_REQUIRED"), {}, (403, "TLS_REQUIRED", ""), ""),
        (MOVED, {}, (302, "", ""), "http://there:1/topics"),
        (None, {"hold": True}, (0, "", "silence"), "50ms"),
        (HALF, {"hold": True}, (0, "", "silence"), "50ms"),
        (HALF, {"reset": True}, (0, "", ""), "incomplete: connection reset"),
        (HALF, {}, (0, "", ""), "incomplete: "),
        (b"", {}, (0, "", ""), "HTTP port"),
        (b"\0\0\0\x12\0\0\0\1E_BAD_PROTOCOL", {}, (0, "", ""), "HTTP port"),
        (b"HTTP/1.1 200 OK\r\n", {}, (0, "", ""), "incomplete"),
    ],
)
async def test_what_is_no_success_is_explained(
    answer: bytes | None, how: dict[str, Any], told: tuple[int, str, str], words: str
) -> None:
    limits = {"request_timeout": 0.05} if "hold" in how else {}
    async with serving(answer, **how) as server:
        error = await lookup_failure(server, **limits)
    assert (error.status, error.code, error.reason) == told
    assert words in error.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>\x1b[31m</html>",
        b"\xff\xfe",
        b"[" * 100_000,
        b"9" * 10_000,
        b"[]",
        b'{"channels": [], "producers": null}',
    ],
)
async def test_a_reply_of_another_shape_is_an_error_that_names_the_endpoint(body: bytes) -> None:
    for answer in (reply(body, 200, V1), reply(body)):
        async with serving(answer) as server:
            error = await lookup_failure(server)
        assert error.text.startswith("/lookup: ")
        assert error.status == 200
        assert error.__cause__ is not None


@pytest.mark.usefixtures("no_such_name")
@pytest.mark.parametrize(
    ("where", "reason", "words"),
    [("127.0.0.1:1", "dial", "refused"), ("nowhere.test:4161", "name", "'nowhere.test'")],
)
async def test_a_server_that_is_not_reached_is_called_that(
    where: str, reason: str, words: str
) -> None:
    error = await lookup_failure(where)
    assert (error.status, error.reason) == (0, reason)
    assert words in error.text
    assert error.__cause__ is not None


async def test_a_reply_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lookupd, "max_reply", 1 << 20)
    async with serving(reply(b" " * ((1 << 20) + 1))) as server:
        error = await lookup_failure(server)
    assert error.text.endswith("is larger than 1 MiB")
    exact = reply(json.dumps({"topics": ["t"]}).ljust(1 << 20))
    async with serving(exact) as server, lookupd(server) as client:
        assert await client.topics() == ["t"]


async def test_a_list_of_many_nsqds_takes_little_more_memory_than_its_text() -> None:
    """A list of dictionaries takes six times as much."""
    nsqd = {"hostname": "h", "version": "1.3.0", "tcp_port": 4150, "http_port": 4151}
    producers = [{"broadcast_address": f"host-{number:06}", **nsqd} for number in range(10_000)]
    answer = reply(json.dumps({"channels": [], "producers": producers}))
    del producers
    async with serving(answer) as server, lookupd(server) as client:
        tracemalloc.start()
        try:
            found = await client.lookup("t")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(found.producers) == 10_000
    assert peak < 5 * len(answer)


async def test_https_verifies_the_server_and_shows_the_client_certificate(
    certificates: Certificates,
) -> None:
    context = certificates.server.context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    config = ClientConfig(tls_root_ca_file=str(certificates.ca))
    identity = config.with_values(
        tls_cert=str(certificates.client.cert), tls_key=str(certificates.client.key)
    )
    async with serving(v1({"topics": ["t"]}), tls=context) as server:
        url = f"https://{server.address}"
        async with lookupd(url, tls=client_context(identity)) as client:
            assert await client.topics() == ["t"]
        error = await lookup_failure(url, tls=client_context(config))
        assert "--tls-cert" in error.text
        stranger = identity.with_values(tls_root_ca_file=str(certificates.other_ca))
        error = await lookup_failure(url, tls=client_context(stranger))
        assert "--tls-root-ca-file" in error.text
        assert len(server.heads) == 1
        unknown = await lookup_failure(url)
    assert "--tls-root-ca-file" in unknown.text
