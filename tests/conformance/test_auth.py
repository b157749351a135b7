"""AUTH, and what nsqd asks the auth server."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.support import wire
from tests.support.eventually import eventually
from tests.support.raw import mpub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import Connect, Raw
    from tests.support.servers import Nsqd
    from tests.support.tls import Certificates

from tests.support.authd import Authd


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


def test_identify_says_that_auth_is_required(client: Raw) -> None:
    assert client.identify()["auth_required"] is True


def test_the_reply_to_auth_says_who_one_is(client: Raw, authd: Authd) -> None:
    authd.grant("sesame", identity="ali")
    assert (
        client.ask("AUTH", b"sesame")
        == json.dumps(
            {"identity": "ali", "identity_url": "http://ali.test/", "permission_count": 1},
            separators=(",", ":"),
        ).encode()
    )


@pytest.mark.parametrize(
    ("command", "body"),
    [("SUB {} c", None), ("PUB {}", b"x"), ("MPUB {}", mpub(b"x")), ("DPUB {} 1", b"x")],
)
def test_before_auth_nothing_is_published_or_subscribed_to(
    command: str, body: bytes | None, client: Raw, nsqd: Nsqd, topic: str
) -> None:
    name = command.partition(" ")[0]
    text = f"E_AUTH_FIRST AUTH required before {name}"
    assert client.fatal(command.format(topic), body) == text
    with pytest.raises(LookupError):
        nsqd.topic(topic)


def test_mpub_is_refused_before_its_body_arrives(client: Raw, topic: str) -> None:
    assert client.fatal(f"MPUB {topic}") == "E_AUTH_FIRST AUTH required before MPUB"


def test_a_wrong_secret_is_refused(client: Raw) -> None:
    assert client.fatal("AUTH", b"barley") == "E_AUTH_FAILED AUTH failed"


def test_a_ttl_of_0_is_refused(client: Raw, authd: Authd) -> None:
    authd.grant("no time", ttl=0)
    assert client.fatal("AUTH", b"no time") == "E_AUTH_FAILED AUTH failed"


def test_a_secret_without_authorizations_is_refused(client: Raw, authd: Authd) -> None:
    authd.grant("nothing")
    authd._replies["nothing"]["authorizations"] = []
    assert client.fatal("AUTH", b"nothing") == "E_UNAUTHORIZED AUTH no authorizations found"


@pytest.mark.parametrize("wrong", [{"topic": "("}, {"channels": ["["]}, {"permissions": ["fly"]}])
def test_an_authorization_that_makes_no_sense_is_refused(
    wrong: dict[str, object], client: Raw, authd: Authd
) -> None:
    authd.grant("nonsense")
    authd._replies["nonsense"]["authorizations"][0].update(wrong)
    assert client.fatal("AUTH", b"nonsense") == "E_AUTH_FAILED AUTH failed"


def test_auth_is_taken_once(client: Raw, authd: Authd) -> None:
    authd.grant("sesame")
    client.ask("AUTH", b"sesame")
    assert client.fatal("AUTH", b"sesame") == "E_INVALID AUTH already set"


def test_stats_show_who_a_client_is(client: Raw, authd: Authd, nsqd: Nsqd, topic: str) -> None:
    authd.grant("sesame", identity="ali")
    client.ask("AUTH", b"sesame")
    client.subscribe(topic)
    (shown,) = nsqd.channel(topic, "c")["clients"]
    assert (shown["authed"], shown["auth_identity"]) == (True, "ali")
    assert shown["auth_identity_url"] == "http://ali.test/"
    names = list(shown)
    assert names[names.index("user_agent") + 1 :][:3] == [
        "authed",
        "auth_identity",
        "auth_identity_url",
    ]


def test_a_subscriber_may_not_publish_and_a_publisher_not_subscribe(
    connect: Connect, authd: Authd, topic: str
) -> None:
    authd.grant("reader", permissions=["subscribe"])
    authd.grant("writer", permissions=["publish"])
    reader, writer = connect(), connect()
    reader.ask("AUTH", b"reader")
    writer.ask("AUTH", b"writer")
    assert reader.fatal(f"PUB {topic}", b"x") == (
        f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}" ""'
    )
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


def test_publishing_wants_a_channel_expression_that_matches_nothing(
    connect: Connect, authd: Authd, topic: str
) -> None:
    authd.grant("one channel", channels=["archive"])
    client = connect()
    client.ask("AUTH", b"one channel")
    assert client.fatal(f"PUB {topic}", b"x").startswith("E_UNAUTHORIZED")


def test_several_authorizations_add_up(connect: Connect, authd: Authd) -> None:
    authd.grant("two", topic="^orders$", permissions=["subscribe"])
    more = {"topic": "^events$", "channels": [".*"], "permissions": ["publish"]}
    authd._replies["two"]["authorizations"].append(more)
    client = connect()
    assert json.loads(client.ask("AUTH", b"two"))["permission_count"] == 2
    assert client.ask("PUB events", b"x") == b"OK"
    client.subscribe("orders")
    assert client.fatal("PUB orders", b"x").startswith("E_UNAUTHORIZED")


def test_the_auth_server_is_told_address_tls_and_secret(client: Raw, authd: Authd) -> None:
    authd.grant("ask & tell")
    client.ask("AUTH", b"ask & tell")
    assert authd.queries[-1] == {
        "remote_ip": "127.0.0.1",
        "tls": "false",
        "secret": "ask & tell",
        "common_name": "",
    }


def test_the_auth_server_is_told_the_name_in_the_client_s_certificate(
    client: Raw, authd: Authd, certificates: Certificates
) -> None:
    authd.grant("sesame")
    client.identify(tls_v1=True)
    context = ssl.create_default_context(cafile=str(certificates.ca))
    client.start_tls(context)
    assert client.response() == b"OK"
    client.ask("AUTH", b"sesame")
    assert (authd.queries[-1]["tls"], authd.queries[-1]["common_name"]) == ("true", "")


def test_after_the_ttl_the_auth_server_is_asked_again(
    client: Raw, authd: Authd, topic: str
) -> None:
    authd.grant("short", ttl=1)
    client.ask("AUTH", b"short")
    asked = len(authd.queries)

    def publish() -> bool:
        assert client.ask(f"PUB {topic}", b"x") == b"OK"
        return len(authd.queries) > asked

    eventually(publish)
    authd.revoke("short")

    def refused() -> bool:
        client.send(f"PUB {topic}", b"x")
        return client.next() == (wire.ERROR, b"E_AUTH_FAILED AUTH failed")

    eventually(refused)
    assert client.ended()
