import asyncio
import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nsqtools import sandbox as sandbox_module
from nsqtools.config.sandbox import NsqdOptions, SandboxOptions
from nsqtools.errors import ConfigError, PublishError
from nsqtools.names import Address
from nsqtools.sandbox import Sandbox
from nsqtools.sandbox.nsqd import Nsqd
from tests.support.process import Cli
from tests.support.servers import free_port, is_free, server_socket

FOLLOWING = (1, 10, 11)  # the ports of a sandbox, from its first


async def test_ports_follow_from_the_first_one() -> None:
    port = free_port(*FOLLOWING)
    async with Sandbox(SandboxOptions(port=port)) as sandbox:
        nsqd, lookupd = sandbox.nsqd, sandbox.lookupd
        for offset, address in zip(
            (0, *FOLLOWING), (nsqd.tcp, nsqd.http, lookupd.tcp, lookupd.http), strict=True
        ):
            assert address == Address("127.0.0.1", port + offset)


@pytest.mark.parametrize("offset", [0, *FOLLOWING])
async def test_a_taken_port_is_one_line_that_names_it_and_leaves_nothing_open(offset: int) -> None:
    port = free_port(*FOLLOWING)
    with server_socket() as taken:
        taken.bind(("127.0.0.1", port + offset))
        taken.listen()
        with pytest.raises(ConfigError) as caught:
            await Sandbox(SandboxOptions(port=port)).start()
        text = str(caught.value)
        assert f"--port {port}: " in text
        assert f"127.0.0.1:{port + offset}: " in text
        assert text.isprintable()
    assert all(is_free(port + other) for other in (0, *FOLLOWING))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts whose names are their addresses, with a + between two."""
    original = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if "+" not in host:
            return original(host, *args, **kwargs)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, 0)) for address in host.split("+") if address]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    "host",
    [
        *("0.0.0.0", "::", "::ffff:0.0.0.0", "0", "::ffff:192.0.2.1"),
        *("+192.0.2.1", "127.0.0.1+192.0.2.1", "192.0.2.1+127.0.0.1"),
    ],
)
async def test_a_host_that_others_can_reach_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="--i-know"):
        await Sandbox(SandboxOptions(host=host, port=0)).start()


@pytest.mark.usefixtures("names")
async def test_a_name_is_resolved_once_and_that_address_is_taken() -> None:
    async with Sandbox(SandboxOptions(host="+127.0.0.1", port=0)) as sandbox:
        assert sandbox.nsqd.tcp.host == "127.0.0.1"
        assert sandbox.nsqd.broadcast_address == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_i_know_listens_where_others_can_reach_it(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked without doing it: only the addresses that would be bound are looked at."""
    bound: list[object] = []

    async def refuse(_: object, __: object, where: object, *___: object, **____: object) -> None:
        bound.append(where)
        raise OSError(99, "not in a test")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_server", refuse)
    with pytest.raises(ConfigError, match="--port"):
        await Sandbox(SandboxOptions(host=host, port=0, i_know=True)).start()
    assert bound == [host]


@pytest.mark.parametrize("content", [None, "\n"])
def test_a_secret_file_must_hold_a_secret(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"--auth-secret-file {path}: "):
        Nsqd(NsqdOptions(auth_secret_file=str(path)))


async def test_what_nsqd_would_not_take_is_not_published() -> None:
    async with Sandbox(nsqd=NsqdOptions(max_msg_size=3)) as sandbox:
        with pytest.raises(ConfigError, match="topic 'a b'"):
            await sandbox.publish("a b", [b"x"])
        for bad in (b"", b"four"):
            with pytest.raises(PublishError) as caught:
                await sandbox.publish("t", [b"x", bad])
            assert list(caught.value.refused) == [1]
        assert sandbox.nsqd.broker.topics == {}


@pytest.mark.parametrize("where", ["topic", "channel"])
async def test_sample_events_are_kept_back_while_many_wait_unread(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish: Callable[[Sequence[bytes]], None]

    async def keep(given: Callable[[Sequence[bytes]], None], *_: object) -> None:
        nonlocal publish
        publish = given

    monkeypatch.setattr(sandbox_module, "publish_at_rate", keep)
    monkeypatch.setattr(sandbox_module, "_MOST_SEEDED", 5)
    async with Sandbox(SandboxOptions(port=0, seed_topic="events")) as sandbox:
        topic = sandbox.nsqd.broker.topic("events")
        await sandbox.nsqd.looked_up("events")
        unread = topic.channel("c") if where == "channel" else topic
        for _ in range(9):
            publish([b"x"])
        assert unread.depth == 5
        unread.empty()
        publish([b"x"])
        assert unread.depth == 1


async def test_a_stopped_sandbox_leaves_no_task_and_no_port() -> None:
    async with Sandbox(SandboxOptions(port=0, seed_topic="events")) as sandbox:
        sandbox.nsqd.broker.topic("t").channel("c")
        await sandbox.publish("t", [b"x"], defer=60)
        idle = await asyncio.open_connection(*sandbox.nsqd.http)
        addresses = [sandbox.nsqd.tcp, sandbox.nsqd.http, sandbox.lookupd.tcp, sandbox.lookupd.http]
    assert await asyncio.wait_for(idle[0].read(), 60) == b""
    idle[1].close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)


@pytest.mark.parametrize("turns", range(8))
async def test_a_stopped_nsqd_cuts_what_was_accepted_just_now(turns: int) -> None:
    """A connection is accepted in one turn of the loop, and served for good some turns later."""
    nsqd = Nsqd()
    await nsqd.start(tcp_port=0)
    with socket.create_connection(nsqd.tcp, timeout=60) as dialled:
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(nsqd.stop(), 60)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(dialled.recv, 1) == b""
    assert not nsqd.links


@pytest.mark.parametrize("seeds", [("--seed-topic", "events", "--rate", "2.5"), ()])
def test_the_command_says_where_it_listens_until_a_signal(
    nsqtools_cli: Cli, seeds: Sequence[str]
) -> None:
    port = free_port(*FOLLOWING)
    command = ("sandbox", "--port", str(port), *seeds)
    running = nsqtools_cli.start(*command, stdout=subprocess.PIPE)
    assert running.stdout
    lines = [running.stdout.readline().decode() for _ in range(4 if seeds else 3)]
    running.send_signal(signal.SIGINT)
    assert (running.stdout.read(), running.wait(60)) == (b"", 130)
    assert all(f"127.0.0.1:{port + each}" in "".join(lines[:2]) for each in (0, *FOLLOWING))
    assert ("2.5" in lines[2], "memory" in lines[-1]) == (bool(seeds), True)


def test_the_command_tells_the_ports_that_it_has_picked(nsqtools_cli: Cli) -> None:
    running = nsqtools_cli.start("sandbox", "--port", "0", stdout=subprocess.PIPE)
    assert running.stdout
    told = json.loads(running.stdout.readline())
    known = ("nsqd_tcp", "nsqd_http", "lookupd_tcp", "lookupd_http")
    assert list(told) == [f"{each}_address" for each in known]
    for address in told.values():
        socket.create_connection(Address.parse(address, 0), timeout=60).close()
