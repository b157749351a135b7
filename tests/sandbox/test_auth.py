"""Secrets of the embedded nsqd: of a file, and of an authd that fails."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from nsqtools.config import NsqdOptions
from nsqtools.errors import AuthError, ConfigError
from nsqtools.names import Address
from nsqtools.sandbox import auth
from nsqtools.sandbox.auth import Authd, Question, make_secrets
from tests.support.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.authd import Authd as FakeAuthd


def question(secret: bytes = b"s3") -> Question:
    return Question(secret, "10.1.2.3", True, "client.test")


async def test_the_one_secret_of_a_file_may_do_everything_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s3\n")
    secrets = make_secrets(NsqdOptions(auth_secret_file=str(path)))
    assert secrets
    found = await secrets.ask(question())
    assert found.allows("t", "c")
    assert found.allows("t", "")
    assert found.expires == float("inf")
    with pytest.raises(AuthError):
        await secrets.ask(question(b"other"))


@pytest.mark.parametrize("content", [None, "\n"])
def test_a_secret_file_must_hold_a_secret(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"--auth-secret-file {path}: "):
        make_secrets(NsqdOptions(auth_secret_file=str(path)))


async def test_an_authd_that_hangs_refuses_or_is_away_is_an_auth_error(
    authd: FakeAuthd, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (authd.address, authd.address._replace(port=free_port())):
        with pytest.raises(AuthError, match=f"{where}: "):
            await Authd(where).ask(question())
    monkeypatch.setattr(auth, "_TIMEOUT", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        address = Address(*hung.getsockname())
        with pytest.raises(AuthError, match=f"{address}: "):
            await Authd(address).ask(question())
