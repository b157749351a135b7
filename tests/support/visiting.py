"""``nsqtools ui`` in a process of its own, and requests to it as a browser or an attacker sends."""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from tests.support.eventually import eventually
from tests.support.process import Cli

PATIENCE = 30.0


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str


class Visited:
    """A running page at ``url``."""

    def __init__(self, cli: Cli, *args: str) -> None:
        pipe = subprocess.PIPE
        command = ("ui", "--address", "127.0.0.1:0", "--interval", "100ms", *args)
        self.process = cli.start(*command, stdout=pipe, stderr=pipe)
        assert self.process.stdout
        line = self.process.stdout.readline().decode().strip()
        assert line, self.error()
        self.url = line
        self.netloc = urlsplit(line).netloc

    def error(self) -> str:
        """What the process has said on standard error, once it has ended."""
        return self.process.communicate()[1].decode()

    def ask(
        self, method: str, path: str, body: str = "", headers: Mapping[str, str] = {}
    ) -> Answer:
        host, port = self.netloc.split(":")
        with closing(HTTPConnection(host, int(port), timeout=PATIENCE)) as connection:
            connection.request(method, path, body.encode(), dict(headers))
            reply = connection.getresponse()
            return Answer(reply.status, dict(reply.getheaders()), reply.read().decode())

    def get(self, path: str, **headers: str) -> Answer:
        """A page; underscores in the names of headers stand for hyphens."""
        return self.ask("GET", path, headers=_spelled(headers))

    def post(
        self, path: str, fields: Mapping[str, str] | Sequence[tuple[str, str]], **headers: str
    ) -> Answer:
        """Submit a form, with the token of the page unless the fields have one."""
        given = {k: v for k, v in _spelled(headers).items() if k == "Authorization"}
        if isinstance(fields, Mapping):
            fields = {"token": self.token(given), **fields}
        form = {"Content-Type": "application/x-www-form-urlencoded", **_spelled(headers)}
        return self.ask("POST", path, urlencode(fields), form)

    def token(self, headers: Mapping[str, str] = {}) -> str:
        path = "/change?verb=create&topic=anything&channel=&nsqd="
        return _token_in(self.ask("GET", path, "", headers).text)

    def reader_token(self, path: str) -> str:
        """The token in a page that visitors may use who change nothing, once there is one."""
        return eventually(lambda: _token_in(self.get(path).text))

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[str]]:
        """The live parts of a page, as they come."""
        host, port = self.netloc.split(":")
        with closing(HTTPConnection(host, int(port), timeout=PATIENCE)) as connection:
            connection.request("GET", path, headers={"Accept": "text/event-stream"})
            reply = connection.getresponse()
            assert reply.status == 200

            def events() -> Iterator[str]:
                lines: list[str] = []
                while line := reply.readline().decode():
                    if line.startswith("data: "):
                        lines.append(line[6:])
                    elif lines:
                        yield "".join(lines)
                        lines = []

            yield events()


def _token_in(page: str) -> str:
    found = re.search(r'name="token" value="(\w+)"', page)
    return found[1] if found else ""


def _spelled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
