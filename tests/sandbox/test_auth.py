"""What secrets are good for."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.config import NsqdOptions
from nsqtools.errors import AuthError, ConfigError
from nsqtools.names import Address
from nsqtools.sandbox import auth
from nsqtools.sandbox.auth import Authd, Grant, Question, make_secrets, parse_grant
from tests.support.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.sandbox.auth import Secrets
    from tests.support.authd import Authd as FakeAuthd


def grant(
    topic: str = ".*", channels: tuple[str, ...] = (".*",), *permissions: str, **rest: Any
) -> Grant:
    entry = {"topic": topic, "channels": channels, "permissions": permissions}
    reply = {"ttl": 10, "identity": "x", "identity_url": "u", "authorizations": [entry], **rest}
    return parse_grant(json.dumps(reply).encode(), 100.0)


def question(secret: bytes = b"s3") -> Question:
    return Question(secret, "10.1.2.3", True, "client.test")


def from_file(path: Path) -> Secrets:
    secrets = make_secrets(NsqdOptions(auth_secret_file=str(path)))
    assert secrets
    return secrets


def test_a_reply_holds_for_its_ttl() -> None:
    found = grant()
    assert (found.expires, found.identity, found.identity_url) == (110.0, "x", "u")


def test_subscribing_needs_topic_channel_and_permission() -> None:
    found = grant("^ev", ("c$",), "subscribe")
    assert found.allows("events", "abc")
    assert not found.allows("never", "abc")
    assert not found.allows("events", "cd")
    assert not grant("^ev", ("c$",), "publish").allows("events", "abc")


def test_publishing_needs_a_channel_that_matches_nothing() -> None:
    assert grant(".*", (".*",), "publish").allows("t", "")
    assert not grant(".*", ("c",), "publish").allows("t", "")
    assert not grant(".*", (), "publish").allows("t", "")
    assert not grant(".*", (".*",), "subscribe").allows("t", "")


def test_expressions_match_anywhere_in_a_name() -> None:
    assert grant("oo", (".",), "subscribe").allows("foobar", "x")


def test_any_of_several_authorizations_is_enough() -> None:
    entries = [
        {"topic": "a", "channels": [".*"], "permissions": ["publish"]},
        {"topic": "b", "channels": [".*"], "permissions": ["subscribe"]},
    ]
    found = grant(authorizations=entries)
    assert (found.allows("a", ""), found.allows("b", "c")) == (True, True)
    assert (found.allows("b", ""), found.allows("a", "c")) == (False, False)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (b"{", "Expecting"),
        (b"[]", "not a JSON object"),
        (b"{}", "invalid TTL 0"),
        (b'{"ttl": 0}', "invalid TTL 0"),
        (b'{"ttl": -1}', "invalid TTL -1"),
        (b'{"ttl": "5"}', "invalid TTL 5"),
        (b'{"ttl": 1, "identity": 3}', "identity: not a text"),
        (b'{"ttl": 1, "authorizations": 3}', "authorizations: not a list"),
        (b'{"ttl": 1, "authorizations": [3]}', "authorization 3: not a JSON object"),
        (b'{"ttl": 1, "authorizations": [{"permissions": ["zap"]}]}', "unknown permission zap"),
        (b'{"ttl": 1, "authorizations": [{"topic": "("}]}', "unable to compile"),
        (b'{"ttl": 1, "authorizations": [{"channels": ["["]}]}', "unable to compile"),
    ],
)
def test_a_reply_that_nsqd_would_not_take_is_refused(reply: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_grant(reply, 0.0)


def test_a_reply_without_authorizations_grants_nothing() -> None:
    assert not parse_grant(b'{"ttl": 1}', 0.0).allows("t", "")


async def test_the_one_secret_may_do_everything_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s3\n")
    secrets = from_file(path)
    found = await secrets.ask(question())
    assert found.allows("t", "c")
    assert found.allows("t", "")
    assert found.expires == float("inf")
    with pytest.raises(AuthError):
        await secrets.ask(question(b"other"))


def test_a_secret_file_must_hold_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--auth-secret-file .*: No such file"):
        from_file(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match=r"--auth-secret-file .*: is empty"):
        from_file(tmp_path / "empty")


def test_without_options_there_is_no_auth() -> None:
    assert make_secrets(NsqdOptions()) is None


async def test_an_authd_is_asked_as_nsqd_does(authd: FakeAuthd) -> None:
    authd.grant("s&3", topic="t")
    secrets = make_secrets(NsqdOptions(auth_http_address=str(authd.address)))
    assert secrets
    found = await secrets.ask(question(b"s&3"))
    assert (found.allows("t", "c"), found.identity) == (True, "tester")
    assert authd.queries == [
        {
            "common_name": "client.test",
            "remote_ip": "10.1.2.3",
            "secret": "s&3",
            "tls": "true",
        }
    ]


async def test_an_authd_that_does_not_answer_is_an_auth_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "_TIMEOUT", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        address = Address(*hung.getsockname())
        with pytest.raises(AuthError, match=f"{address}: no answer within 0.01 s"):
            await Authd(address).ask(question())


async def test_an_authd_that_refuses_or_is_away_is_an_auth_error(authd: FakeAuthd) -> None:
    with pytest.raises(AuthError, match=f"{authd.address}: status 403"):
        await Authd(authd.address).ask(question())
    nobody = authd.address._replace(port=free_port())
    with pytest.raises(AuthError, match=f"{nobody}: "):
        await Authd(nobody).ask(question())
