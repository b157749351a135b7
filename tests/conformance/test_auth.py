"""AUTH by an auth server, and what nsqd asks it."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import wire
from tests.support.authd import Authd
from tests.support.eventually import eventually
from tests.support.raw import mpub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import Connect, Raw
    from tests.support.servers import Nsqd
    from tests.support.tls import Certificates


@pytest.fixture(scope="module")
def authd() -> Iterator[Authd]:
    with Authd() as running:
        yield running


@pytest.fixture(scope="module")
def nsqd(
    nsqd_class: type[Nsqd],
    authd: Authd,
    certificates: Certificates,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Nsqd]:
    args = [*authd.nsqd_args(), *certificates.server.nsqd_args()]
    with nsqd_class(tmp_path_factory.mktemp("nsqd"), *args) as running:
        yield running


def test_the_reply_to_auth_says_who_one_is_and_so_do_stats(
    client: Raw, authd: Authd, nsqd: Nsqd, topic: str
) -> None:
    assert client.identify()["auth_required"] is True
    authd.grant("sesame", identity="ali")
    assert client.ask("AUTH", b"sesame") == (
        b'{"identity":"ali","identity_url":"http://ali.test/","permission_count":1}'
    )
    client.subscribe(topic)
    (shown,) = nsqd.channel(topic, "c")["clients"]
    told = list(shown.items())
    begin = [name for name, _ in told].index("user_agent") + 1
    assert told[begin : begin + 3] == [
        ("authed", True),
        ("auth_identity", "ali"),
        ("auth_identity_url", "http://ali.test/"),
    ]


@pytest.mark.parametrize(
    "reply",
    [
        None,
        [],
        {},
        {"ttl": "5"},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": 1, "identity": 3},
        {"ttl": 1, "authorizations": 3},
        {"ttl": 1, "authorizations": [3]},
        {"ttl": 1, "authorizations": [{"topic": "("}]},
        {"ttl": 1, "authorizations": [{"channels": ["["]}]},
        {"ttl": 1, "authorizations": [{"permissions": ["fly"]}]},
    ],
)
def test_a_reply_that_makes_no_sense_or_refuses_is_a_failure(
    reply: Any, client: Raw, authd: Authd
) -> None:
    authd.replies["nonsense"] = reply
    assert client.fatal("AUTH", b"nonsense") == "E_AUTH_FAILED AUTH failed"


def test_a_secret_without_authorizations_is_refused(client: Raw, authd: Authd) -> None:
    authd.replies["nothing"] = {"ttl": 1}
    assert client.fatal("AUTH", b"nothing") == "E_UNAUTHORIZED AUTH no authorizations found"


def test_a_subscriber_may_not_publish_and_a_publisher_not_subscribe(
    connect: Connect, authd: Authd, nsqd: Nsqd, topic: str
) -> None:
    authd.grant("reader", permissions=["subscribe"])
    authd.grant("writer", permissions=["publish"])
    for command, body in (("PUB", b"x"), ("MPUB", mpub(b"x")), ("DPUB", b"x")):
        reader = connect()
        reader.ask("AUTH", b"reader")
        assert reader.fatal(f"{command} {topic} 0", body) == (
            f'E_UNAUTHORIZED AUTH failed for {command} on "{topic}" ""'
        )
    with pytest.raises(LookupError):
        nsqd.topic(topic)
    writer = connect()
    writer.ask("AUTH", b"writer")
    assert writer.ask(f"PUB {topic}", b"x") == b"OK"
    assert writer.fatal(f"SUB {topic} c") == (
        f'E_UNAUTHORIZED AUTH failed for SUB on "{topic}" "c"'
    )


def test_topics_and_channels_are_regular_expressions_that_match_anywhere(
    connect: Connect, authd: Authd
) -> None:
    authd.grant("part", topic="rde", channels=["^arch", "mirror$"], permissions=["subscribe"])

    def try_sub(topic: str, channel: str) -> bytes:
        client = connect()
        client.ask("AUTH", b"part")
        client.send(f"SUB {topic} {channel}")
        return client.next()[1].partition(b" ")[0]

    assert try_sub("orders", "archive") == try_sub("warden", "a_mirror") == b"OK"
    for topic, channel in (("other", "archive"), ("orders", "no_arch"), ("orders", "mirror2")):
        assert try_sub(topic, channel) == b"E_UNAUTHORIZED"


def test_several_authorizations_add_up(client: Raw, authd: Authd) -> None:
    authd.grant("two", topic="^orders$", permissions=["subscribe"])
    more = {"topic": "^events$", "channels": [".*"], "permissions": ["publish"]}
    authd.replies["two"]["authorizations"].append(more)
    assert json.loads(client.ask("AUTH", b"two"))["permission_count"] == 2
    assert client.ask("PUB events", b"x") == b"OK"
    client.subscribe("orders")
    assert client.fatal("PUB orders", b"x").startswith("E_UNAUTHORIZED")


@pytest.mark.parametrize("secure", [False, True])
def test_the_auth_server_is_told_address_tls_secret_and_name_of_the_certificate(
    secure: bool, client: Raw, authd: Authd, certificates: Certificates
) -> None:
    authd.grant("ask & tell")
    if secure:
        client.identify(tls_v1=True)
        context = ssl.create_default_context(cafile=str(certificates.ca))
        context.load_cert_chain(certificates.client.cert, certificates.client.key)
        client.start_tls(context)
        assert client.response() == b"OK"
    client.ask("AUTH", b"ask & tell")
    assert authd.queries[-1] == {
        "remote_ip": "127.0.0.1",
        "tls": "true" if secure else "false",
        "secret": "ask & tell",
        "common_name": "",  # as no client's certificate is asked for
    }


def test_after_the_ttl_the_auth_server_is_asked_again(
    connect: Connect, authd: Authd, topic: str
) -> None:
    kept, revoked = connect(), connect()
    for client, secret in ((kept, "short"), (revoked, "gone")):
        authd.grant(secret, ttl=1)
        client.ask("AUTH", secret.encode())
    authd.revoke("gone")
    asked = len(authd.queries)
    assert kept.ask(f"PUB {topic}", b"x") == b"OK"

    def refused() -> bool:
        revoked.send(f"PUB {topic}", b"x")
        return revoked.next() == (wire.ERROR, b"E_AUTH_FAILED AUTH failed")

    eventually(refused)
    assert revoked.ended()
    assert kept.ask(f"MPUB {topic}", mpub(b"y")) == b"OK"
    assert {each["secret"] for each in authd.queries[asked:]} == {"gone", "short"}
