"""AUTH with a secret that may do everything: an auth server's, or the sandbox's one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.authd import Authd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.raw import Connect, Raw
    from tests.support.servers import Nsqd


@pytest.fixture(scope="module")
def nsqd(
    server: str, nsqd_class: type[Nsqd], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nsqd]:
    folder = tmp_path_factory.mktemp("nsqd")
    with Authd() as authd:
        authd.grant("sesame")
        args = authd.nsqd_args()
        if server == "sandbox":
            (folder / "secret").write_text("sesame\n")
            args = [f"-auth-secret-file={folder / 'secret'}"]
        with nsqd_class(folder, *args) as running:
            yield running


def test_after_auth_one_may_publish_and_subscribe(client: Raw, nsqd: Nsqd, topic: str) -> None:
    assert client.identify()["auth_required"] is True
    assert json.loads(client.ask("AUTH", b"sesame"))["permission_count"] == 1
    assert client.ask(f"PUB {topic}", b"x") == b"OK"
    assert client.subscribe(topic, ready=1).message().body == b"x"
    (shown,) = nsqd.channel(topic, "c")["clients"]
    assert shown["authed"] is True


@pytest.mark.parametrize(
    ("command", "body"),
    [("SUB {} c", None), ("PUB {}", b"x"), ("MPUB {}", None), ("DPUB {} 1", b"x")],
)
def test_before_auth_nothing_is_published_or_subscribed_to(
    command: str, body: bytes | None, client: Raw, nsqd: Nsqd, topic: str
) -> None:
    name = command.partition(" ")[0]
    text = f"E_AUTH_FIRST AUTH required before {name}"
    assert client.fatal(command.format(topic), body) == text
    with pytest.raises(LookupError):
        nsqd.topic(topic)


def test_another_secret_and_a_second_one_end_the_connection(connect: Connect) -> None:
    assert connect().fatal("AUTH", b"barley") == "E_AUTH_FAILED AUTH failed"
    client = connect()
    client.ask("AUTH", b"sesame")
    assert client.fatal("AUTH", b"sesame") == "E_INVALID AUTH already set"
