"""Files of what is said to a server and what it answers, which are run, compared and rewritten.

The first line has the program, how it is talked to and its flags. Lines with a ``>`` are said, the
indented ones after them answered; others are comments. Over ``http``:

    > POST /pub?topic=t << b"body"      a request; the answer is status, kind and body
    > RAW b"GET /ping ..." THEN b"..."  bytes, and more after a line; answered by status and body
    ~> GET /nodes                       a request that is repeated until the answer is this
    ~> STATS t                          the counters of a topic in /stats that are not 0
    a> SUB t c                          a command on a connection that has a name and stays open
    a> (take 2)                         the next messages, sorted: attempts and body
    a> FIN $body                        the id of the message that had this body
    a> (nothing)                        no message comes while all commands so far are carried out
    a> (leave)                          the client closes its connection
    a> (closed)                         the server has closed it

Over ``tcp``, to nsqd. Commands that follow each other share a connection, and what is answered is
all until nsqd hangs up: ``! `` is an error. nsqd pushes messages between its answers, whenever it
likes: a file that says RDY subscribes to a topic that has none, and fails if one comes.

    > PUB t << b"body"                  a command with a body after its size
    > PUB t <<< b"\\0\\0"                a command with bytes after it
    > EOF                               the client ends its stream
"""

import contextlib
import itertools
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from tests.support import wire
from tests.support.eventually import eventually
from tests.support.raw import Answer, Message, Raw, RawLookupd, http_ask, mpub, sized
from tests.support.servers import Server

KINDS = {
    ("application/json; charset=utf-8", "nsq; version=1.0"): "json",
    ("text/plain; charset=utf-8", "nsq; version=1.0"): "text",
    ("text/plain; charset=utf-8", None): "plain text",
    (None, "nsq; version=1.0"): "nothing",
}
TIMES = "start_time|last_update|tombstoned_at|connect_ts"
SILENT = {"RDY", "FIN", "REQ", "TOUCH"}
"""Commands that are answered only when they fail."""
SAID = re.compile(r"([~\w]*)> (.*)")


def carry_on(text: str, server: Server, over: str) -> str:
    """The same file, with what the server answers now."""
    talk = {"http": _over_http, "tcp": _over_tcp}[over]
    return "".join(f"{line}\n" for line in talk(text.splitlines(), server))


def _over_http(lines: Sequence[str], server: Server) -> Iterator[str]:
    with contextlib.ExitStack() as opened:
        clients = _Clients(server, opened)
        for number, line in enumerate(lines):
            if not line.startswith("  "):
                yield line
            if said := SAID.fullmatch(line):
                answers = itertools.takewhile(lambda each: each[:2] == "  ", lines[number + 1 :])
                yield from clients.answers(said[1], said[2], list(answers))


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


class _Clients:
    """Of one server: connections by name, and the ids of messages that they took by body."""

    def __init__(self, server: Server, opened: contextlib.ExitStack) -> None:
        self._server = server
        self._opened = opened
        self._clients: dict[str, Raw] = {}
        self._ids: dict[str, str] = {}
        self._patience = 60.0

    def answers(self, name: str, said: str, expected: list[str]) -> list[str]:
        if not name:
            return self._request(said) if not said.startswith("RAW ") else self._raw(said[4:])
        if name != "~":
            return [f"  {self._normal(each)}" for each in self._of_client(name, said)]
        ask = self._counts if said.startswith("STATS ") else self._request
        found: list[str] = []

        def is_expected() -> bool:
            found[:] = ask(said)
            return found == expected

        try:
            eventually(is_expected, self._patience if expected else 1.0)
        except AssertionError:
            self._patience = 0.1  # what follows may differ, too
        return found

    def _request(self, said: str) -> list[str]:
        request, _, body = said.partition(" << ")
        answer = http_ask(self._server.http, request, _value(body) if body else None)
        lines = [self._normal(each) for each in answer.body.decode().splitlines()]
        if len(lines) > 1:
            return [f"  {_head(answer)}", *(f"  |{line}|" for line in lines)]
        return [" ".join(["", "", _head(answer), *lines])]

    def _raw(self, said: str) -> list[str]:
        first, _, second = said.partition(" THEN ")
        with socket.create_connection(self._server.http, 60) as plain:
            reader = plain.makefile()
            plain.sendall(_value(first))
            heads = [reader.readline()] if second else []
            plain.sendall(_value(second or "b''"))
            *lines, body = (*heads, *reader.read().splitlines())
        shown = [*(line[len("HTTP/1.1 ") :] for line in lines if line.startswith("HTTP/")), body]
        return [f"  {', '.join(each.strip().partition(':')[0] for each in shown)}"]  # Go says more

    def _counts(self, said: str) -> list[str]:
        request = f"GET /stats?format=json&topic={quote(said.removeprefix('STATS '))}"
        found = []
        for topic in http_ask(self._server.http, request).json["topics"] or ():
            found.append(_numbers(f"topic {topic['topic_name']}", topic))
            for channel in topic["channels"]:
                found.append(_numbers(f"  channel {channel['channel_name']}", channel))
                found += [_numbers("    client", client) for client in channel["clients"]]
        return found or ["  (no topic)"]

    def _of_client(self, name: str, said: str) -> list[str]:
        if name not in self._clients:
            kind = Raw if self._server.program == "nsqd" else RawLookupd
            self._clients[name] = self._opened.enter_context(kind(self._server.tcp))
        client = self._clients[name]
        match said.strip("()").split():
            case ["take", count]:
                return sorted(map(self._took, [client.message() for _ in range(int(count))]))
            case ["nothing"]:
                return [] if client.settle() == 0 else ["(messages)"]
            case ["leave"]:
                self._clients.pop(name).close()
                return []
            case ["closed"]:
                return [] if self._clients.pop(name).ended() else ["(not closed)"]
        client.write(_bytes_of(re.sub(r"\$(\w+)", lambda found: self._ids[found[1]], said)))
        if said.split(" ")[0] in SILENT:
            return client.carried_out()
        answer = client.next()[1].decode()
        if answer.startswith("E_"):
            assert self._clients.pop(name).ended()
        return [answer]

    def _took(self, message: Message) -> str:
        self._ids[message.body.decode()] = message.id
        return f"{message.attempts} {message.body!r}"

    def _normal(self, text: str) -> str:
        for name, client in self._clients.items():
            text = text.replace(client.address, f"ADDRESS-OF-{name.upper()}")
        for body, found in self._ids.items():
            text = text.replace(found, f"${body}")
        for name, port in (("TCP", self._server.tcp.port), ("HTTP", self._server.http.port)):
            text = text.replace(f'_port":{port}', f'_port":{name}')
        text = text.replace(f'"hostname":"{socket.gethostname()}"', '"hostname":"HOST"')
        text = re.sub(r'(?<="topics":\[)"[^]]*"', _in_order, text)
        text = re.sub(rf'("(?:{TIMES})":)-?\d+', r"\1N", text)
        return re.sub(r"^(nsqd v1.3.0|start_time|uptime) .*", r"\1 ...", text)


def _numbers(name: str, entry: Mapping[str, Any]) -> str:
    """Those that are neither 0 nor a time."""
    numbers = [f"{key}={value}" for key, value in entry.items() if isinstance(value, int) and value]
    return " ".join([f"  {name}", *(each for each in numbers if "connect_ts" not in each)])


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


def _in_order(names: re.Match[str]) -> str:
    """Go has no order of a map."""
    return ",".join(sorted(names[0].split(",")))
