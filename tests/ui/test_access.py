"""Logins: passwords cannot be guessed fast, and those who have logged in do not notice."""

import asyncio
import base64
from pathlib import Path
from typing import Any

from starlette.responses import PlainTextResponse

from nsqtools.config.ui import UiOptions
from nsqtools.ui.access import AccessGuard
from tests.support.clock import virtual


class Door:
    """A guard with one user; counts the answers by status."""

    def __init__(self, folder: Path) -> None:
        passwords = folder / "passwords"
        passwords.write_text("ann:secret\n")
        self.guard = AccessGuard(PlainTextResponse("x"), UiOptions(password_file=str(passwords)))

    async def knock(self, password: str, cookie: str = "") -> tuple[int, str, float]:
        """Return the status, the cookie, and the seconds that it took."""
        basic = base64.b64encode(f"ann:{password}".encode())
        given = ((b"host", b"127.0.0.1"), (b"authorization", b"Basic " + basic))
        headers = [*given, (b"cookie", cookie.encode())]
        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "state": {}}
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("nothing is read")

        began = asyncio.get_running_loop().time()
        await self.guard(scope, receive, send)
        took = asyncio.get_running_loop().time() - began
        given_back = dict(sent[0]["headers"]).get(b"set-cookie", b"").decode()
        return sent[0]["status"], given_back.partition(";")[0], took


@virtual
async def test_guesses_wait_for_each_other_and_only_new_logins_wait_with_them(
    tmp_path: Path,
) -> None:
    door = Door(tmp_path)
    status, cookie, took = await door.knock("secret")
    assert (status, took) == (200, 0.0)
    guesses = asyncio.gather(*(door.knock(f"guess{n}") for n in range(100)))
    await asyncio.sleep(0)
    assert (await door.knock("secret", cookie))[::2] == (200, 0.0)
    assert (await door.knock("secret", "login=forged"))[::2] == (503, 0.0)
    assert (await door.knock("guess", cookie))[0] == 503
    found = await guesses
    assert [status for status, _, _ in found] == [401] * 50 + [503] * 50
    assert not any(given for _, given, _ in found)
    assert max(took for _, _, took in found) > 4.9
    assert (await door.knock("secret"))[0] == 200
