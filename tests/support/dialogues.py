"""Files of what is said to a server and what it answers, which are run, compared and rewritten.

The first line has the program, how it is talked to and its flags. Lines with a ``>`` are said, the
indented ones after them answered; others are comments. Over ``http``:

    > POST /pub?topic=t << b"body"      a request; the answer is status, kind and body

Over ``tcp``, to nsqd. Commands that follow each other share a connection, and what is answered is
all until nsqd hangs up: ``! `` is an error, a number and a body is a message with its attempts.

    > PUB t << b"body"                  a command with a body after its size
    > PUB t <<< b"\\0\\0"                a command with bytes after it
    > EOF                               the client ends its stream

With nsqlookupd, as ``lookup``, both are mixed; each connection has a name and stays open:

    nsqd> REGISTER t                    a command and its answer
"""

from __future__ import annotations

import contextlib
import re
import socket
from typing import TYPE_CHECKING

from tests.support import wire
from tests.support.raw import Answer, Raw, RawLookupd, http_ask, mpub, sized

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.servers import Server

KINDS = {
    ("application/json; charset=utf-8", "nsq; version=1.0"): "json",
    ("text/plain; charset=utf-8", "nsq; version=1.0"): "text",
    ("text/plain; charset=utf-8", None): "plain text",
    (None, "nsq; version=1.0"): "nothing",
}
SAID = re.compile(r"(\w*)> (.*)")


def carry_on(text: str, server: Server, over: str) -> str:
    """The same file, with what the server answers now."""
    talk = {"http": _over_http, "tcp": _over_tcp, "lookup": _with_lookupd}[over]
    return "".join(f"{line}\n" for line in talk(text.splitlines(), server))


def _over_http(lines: Sequence[str], server: Server) -> Iterator[str]:
    for line, said in _without_answers(lines):
        yield line
        if said:
            yield from _request(said[2], server)


def _over_tcp(lines: Sequence[str], server: Server) -> Iterator[str]:
    said: list[str] = []
    for line in lines:
        if found := SAID.fullmatch(line):
            said.append(found[2])
        elif said:
            yield from _until_closed(said, server)
            said.clear()
        if not line.startswith("  "):
            yield line


def _with_lookupd(lines: Sequence[str], server: Server) -> Iterator[str]:
    with contextlib.ExitStack() as opened:
        peers: dict[str, RawLookupd] = {}
        for line, said in _without_answers(lines):
            yield line
            if said and not said[1]:
                yield from _request(said[2], server, peers)
            elif said:
                if said[1] not in peers:
                    peers[said[1]] = opened.enter_context(RawLookupd(server.tcp))
                peer = peers[said[1]]
                peer.write(_bytes_of(said[2]))
                answer = peer.response().decode()
                yield f"  {_normal(answer, server, peers)}"
                if answer.startswith("E_"):
                    assert peers.pop(said[1]).ended()


def _without_answers(lines: Sequence[str]) -> Iterator[tuple[str, re.Match[str] | None]]:
    for line in lines:
        if not line.startswith("  "):
            yield line, SAID.fullmatch(line)


def _request(said: str, server: Server, peers: dict[str, RawLookupd] | None = None) -> list[str]:
    request, _, body = said.partition(" << ")
    answer = http_ask(server.http, request, _value(body) if body else None)
    lines = [_normal(each, server, peers or {}) for each in answer.body.decode().splitlines()]
    if len(lines) > 1:
        return [f"  {_head(answer)}", *(f"  |{line}|" for line in lines)]
    return [" ".join(["", "", _head(answer), *lines])]


def _head(answer: Answer) -> str:
    headers = dict(answer.headers)
    length = headers.pop("content-length", "0")
    key = headers.pop("content-type", None), headers.pop("x-nsq-content-type", None)
    allow = " ".join(sorted(headers.pop("allow", "").split(", ")))
    headers.pop("date", None)
    rest = [f"{name}: {text}" for name, text in sorted(headers.items())]
    size = f"of {length} bytes" if not answer.body and length != "0" else ""
    words = (str(answer.status), KINDS.get(key, str(key)), size, allow and f"for {allow}", *rest)
    return " ".join(filter(None, words))


def _until_closed(said: Sequence[str], server: Server) -> list[str]:
    shown = []
    with Raw(server.tcp) as client, contextlib.suppress(EOFError, ConnectionError):
        with contextlib.suppress(OSError):  # it may have hung up by now
            client.write(b"".join(_bytes_of(each) for each in said if each != "EOF"))
            if "EOF" in said:
                client.socket.shutdown(socket.SHUT_WR)
        while True:
            kind, data = client.next()
            if kind == wire.MESSAGE:
                shown.append(f"  {data[9]} {data[26:]!r}")
            else:
                mark = "! " if kind == wire.ERROR else ""
                shown.append(f"  {mark}{data.decode(errors='backslashreplace')}")
    return shown or ["  (hangs up)"]


def _bytes_of(said: str) -> bytes:
    line, raw, rest = said.partition(" <<< ")
    if not raw:
        line, _, body = said.partition(" << ")
        rest = f"sized({body})" if body else "b''"
    quoted = line.replace("'", "\\'")
    return _value(f"b'{quoted}\\n'") + _value(rest)


def _value(text: str) -> bytes:
    found: bytes = eval(text, {"mpub": mpub, "sized": sized})
    return found


def _normal(text: str, server: Server, peers: dict[str, RawLookupd]) -> str:
    for name, peer in peers.items():
        text = text.replace(peer.address, f"ADDRESS-OF-{name.upper()}")
    for name, port in (("TCP", server.tcp.port), ("HTTP", server.http.port)):
        text = text.replace(f'_port":{port}', f'_port":{name}')
    text = text.replace(f'"{socket.gethostname()}"', '"HOST"')
    text = re.sub(r'(?<="topics":\[)"[^]]*"', _in_order, text)
    text = re.sub(r'("(?:start_time|last_update|tombstoned_at)":)-?\d+', r"\1N", text)
    return re.sub(r"^(nsqd v1.3.0|start_time|uptime) .*", r"\1 ...", text)


def _in_order(names: re.Match[str]) -> str:
    """Go has no order of a map."""
    return ",".join(sorted(names[0].split(",")))
