"""AUTH of one client, in memory and in virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nsqtools.errors import AuthError
from nsqtools.sandbox.auth import Grant, Question, parse_grant
from tests.support.clock import elapse, virtual
from tests.support.peer import Peer, make_nsqd, turn
from tests.support.raw import mpub

if TYPE_CHECKING:
    from nsqtools.sandbox.nsqd import Nsqd

ALL = b'{"ttl": 10, "authorizations": [{"topic": "^t$", "channels": [".*"], "permissions": '


class Secrets:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.answers: asyncio.Queue[Grant | AuthError] = asyncio.Queue()

    async def ask(self, question: Question) -> Grant:
        self.asked.append(question)
        answer = await self.answers.get()
        if isinstance(answer, AuthError):
            raise answer
        return answer

    def allow(self, permissions: str = '["publish", "subscribe"]}]}') -> None:
        now = asyncio.get_running_loop().time()
        self.answers.put_nowait(parse_grant(ALL + permissions.encode(), now))


def secured() -> tuple[Nsqd, Secrets]:
    nsqd, secrets = make_nsqd(), Secrets()
    nsqd.secrets = secrets
    return nsqd, secrets


@virtual
async def test_commands_wait_for_the_authd_and_then_go_on() -> None:
    nsqd, secrets = secured()
    peer = Peer(nsqd)
    peer.send("AUTH", body=b"s3")
    peer.send("SUB t c", "PUB t", body=b"x")
    await turn()
    assert (peer.texts(), nsqd.broker.topics) == ([], {})
    secrets.allow()
    await turn()
    assert peer.texts() == [
        '{"identity":"","identity_url":"","permission_count":1}',
        "OK",
        "OK",
    ]
    assert secrets.asked == [Question(b"s3", "127.0.0.1", False, "")]
    assert peer.client.stats("")["authed"] is True


@virtual
async def test_a_client_is_not_given_up_while_the_authd_is_asked() -> None:
    nsqd, secrets = secured()
    peer = Peer(nsqd)
    peer.identify(heartbeat_interval=1000)
    peer.send("AUTH", body=b"s3")
    await elapse(5)
    secrets.allow()
    await elapse(1.9)
    assert not peer.closed
    await elapse(0.5)
    assert peer.closed


@virtual
async def test_a_client_that_leaves_while_the_authd_is_asked_is_answered_nothing() -> None:
    nsqd, secrets = secured()
    peer = Peer(nsqd)
    peer.send("AUTH", body=b"s3")
    await turn()
    peer.transport.lose()
    secrets.allow()
    await turn()
    assert peer.texts() == []


@virtual
async def test_an_end_of_the_stream_waits_for_the_answer_of_the_authd() -> None:
    nsqd, secrets = secured()
    peer = Peer(nsqd)
    peer.send("AUTH", body=b"s3")
    peer.transport.deliver_eof()
    await turn()
    assert not peer.closed
    secrets.allow()
    await turn()
    assert len(peer.texts()) == 1
    assert peer.closed


@virtual
async def test_an_old_grant_is_renewed_before_the_next_command_that_needs_it() -> None:
    nsqd, secrets = secured()
    peer = Peer(nsqd)
    secrets.allow()
    peer.send("AUTH", body=b"s3")
    await elapse(9)
    peer.send("PUB t", body=b"x")
    assert len(secrets.asked) == 1
    await elapse(2)
    for command, body in (("PUB t", b"x"), ("MPUB t", mpub(b"y", b"z"))):
        peer.send(command, body=body)
    await turn()
    assert len(secrets.asked) == 2
    assert nsqd.broker.topics["t"].message_count == 1
    secrets.allow()
    await turn()
    assert nsqd.broker.topics["t"].message_count == 4
    await elapse(11)
    secrets.answers.put_nowait(AuthError("gone"))
    peer.send("SUB t c")
    await turn()
    assert peer.texts()[1:] == ["OK", "OK", "OK", "E_AUTH_FAILED AUTH failed"]
    assert peer.closed


@pytest.mark.parametrize(
    ("command", "body", "text"),
    [
        ("SUB t c", None, 'SUB on "t" "c"'),
        ("PUB other", b"x", 'PUB on "other" ""'),
        ("MPUB other", mpub(b"x"), 'MPUB on "other" ""'),
        ("DPUB other 0", b"x", 'DPUB on "other" ""'),
    ],
)
def test_what_was_not_granted_is_refused(command: str, body: bytes | None, text: str) -> None:
    @virtual
    async def run() -> None:
        nsqd, secrets = secured()
        stranger = Peer(nsqd)
        stranger.send(command, body=body)
        verb = command.split()[0]
        assert stranger.texts() == [f"E_AUTH_FIRST AUTH required before {verb}"]
        peer = Peer(nsqd)
        secrets.allow('["publish"]}]}')
        peer.send("AUTH", body=b"s3")
        peer.send(command, body=body)
        await turn()
        assert peer.texts()[1:] == [f"E_UNAUTHORIZED AUTH failed for {text}"]
        assert not nsqd.broker.topics

    run()


@virtual
async def test_auth_is_refused_where_there_is_none_or_when_it_was_given() -> None:
    peer = Peer(make_nsqd())
    peer.send("AUTH", body=b"s3")
    assert peer.texts() == ["E_AUTH_DISABLED AUTH disabled"]
    nsqd, secrets = secured()
    peer = Peer(nsqd)
    secrets.allow()
    peer.send("AUTH", body=b"s3")
    peer.send("AUTH", body=b"s3")
    await turn()
    assert peer.texts()[1:] == ["E_INVALID AUTH already set"]
    nothing = Peer(nsqd)
    secrets.answers.put_nowait(Grant(float("inf")))
    nothing.send("AUTH", body=b"s3")
    await turn()
    assert nothing.texts() == ["E_UNAUTHORIZED AUTH no authorizations found"]
