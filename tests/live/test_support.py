"""The infrastructure of the live tests keeps its own promises."""

import asyncio
import os
import select
import socket
import ssl
import subprocess
import sys

import pytest

from tests.support import wire
from tests.support.authd import Authd
from tests.support.eventually import eventually, eventually_async
from tests.support.process import Cli
from tests.support.proxy import Proxy
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
from tests.support.tls import Certificates


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_nsqd_serves_ping_and_starts_empty(nsqd: Nsqd) -> None:
    assert nsqd.request("GET", "/ping") == b"OK"
    assert nsqd.stats()["topics"] == []


def test_published_bodies_are_counted_in_the_stats(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"one", b"two\nlines", b"\0"])
    nsqd.publish(topic, (b"x" * 1_000_000 for _ in range(6)))  # more than one MPUB may hold
    eventually(lambda: nsqd.channel(topic, "c")["depth"] == 9)
    nsqd.empty(topic, "c")
    assert nsqd.channel(topic, "c")["depth"] == 0


def test_topics_and_channels_can_be_paused_and_deleted(nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.pause(topic)
    nsqd.pause(topic, "c")
    assert nsqd.topic(topic)["paused"] is nsqd.channel(topic, "c")["paused"] is True
    nsqd.unpause(topic)
    nsqd.unpause(topic, "c")
    assert nsqd.topic(topic)["paused"] is nsqd.channel(topic, "c")["paused"] is False
    nsqd.delete(topic, "c")
    with pytest.raises(LookupError, match="no channel"):
        nsqd.channel(topic, "c")
    nsqd.delete(topic)
    with pytest.raises(LookupError, match="no topic"):
        nsqd.topic(topic)


@pytest.mark.nsqd_only("it is about messages on disk")
def test_a_restart_keeps_ports_and_data(nsqd: Nsqd, topic: str) -> None:
    before, pid = (nsqd.tcp, nsqd.http), nsqd.pid
    nsqd.publish(topic, [b"kept"])
    nsqd.restart()
    assert (nsqd.tcp, nsqd.http) == before
    assert not is_alive(pid)
    assert nsqd.topic(topic)["depth"] == 1


@pytest.mark.nsqd_only("it is about topics on disk")
def test_a_killed_nsqd_is_gone_at_once_and_forgets_what_was_in_memory(
    nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic)
    nsqd.restart()  # nsqd writes its list of topics in the background, and when it stops
    nsqd.publish(topic, [b"lost"])
    pid = nsqd.pid
    nsqd.kill()
    assert not is_alive(pid)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(nsqd.tcp)
    nsqd.restart()
    assert nsqd.topic(topic)["depth"] == 0


def test_a_failed_start_shows_the_log(make_nsqd: MakeNsqd) -> None:
    with pytest.raises(RuntimeError, match="flag provided but not defined: -no-such-flag"):
        make_nsqd("-no-such-flag")


def test_two_servers_never_share_a_port(make_nsqd: MakeNsqd) -> None:
    first, second = make_nsqd(), make_nsqd()
    assert not {first.tcp, first.http} & {second.tcp, second.http}
    second.stop()
    second.tcp = first.tcp  # somebody was quicker: it takes other ports
    with second:
        assert second.tcp != first.tcp


def test_nsqlookupd_hears_of_an_nsqd(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    assert nsqlookupd.lookup(topic) == set()
    nsqd.create(topic)
    eventually(lambda: nsqlookupd.lookup(topic) == {nsqd.tcp})


async def test_the_proxy_carries_a_dialogue_in_random_pieces(nsqd: Nsqd, topic: str) -> None:
    async with Proxy(nsqd.tcp) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address)
        writer.write(b"  V2" + f"SUB {topic} c\nRDY 1\n".encode())
        assert await reader.readexactly(len(wire.OK)) == wire.OK
        nsqd.publish(topic, [b"hello"])
        frame = await reader.readexactly(len(wire.message(0, b"hello")))
        assert frame.endswith(b"hello")
        writer.write(b"FIN " + frame[18:34] + b"\n")
        await eventually_async(lambda: nsqd.channel(topic, "c")["in_flight_count"] == 0)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await eventually_async(lambda: nsqd.channel(topic, "c")["clients"] == [])
        writer.transport.abort()


def identify_over_tls(nsqd: Nsqd, context: ssl.SSLContext) -> None:
    with socket.create_connection(nsqd.tcp, timeout=10) as plain:
        body = b'{"feature_negotiation":true,"tls_v1":true}'
        plain.sendall(b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
        head = plain.recv(4, socket.MSG_WAITALL)
        assert b'"tls_v1":true' in plain.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            assert secure.recv(len(wire.OK)) == wire.OK


def test_an_nsqd_that_requires_tls_takes_the_certificates_made_for_it(
    make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd(
        *certificates.server.nsqd_args(),
        "-tls-required=tcp-https",
        "-tls-client-auth-policy=require-verify",
        f"-tls-root-ca-file={certificates.ca}",
    )
    trusting = ssl.create_default_context(cafile=str(certificates.ca))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        identify_over_tls(nsqd, trusting)
    for client in (certificates.other_client, certificates.client):
        trusting.load_cert_chain(client.cert, client.key)
        if client is certificates.client:
            identify_over_tls(nsqd, trusting)
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                identify_over_tls(nsqd, trusting)
    with pytest.raises(ssl.SSLCertVerificationError, match="VERIFY_FAILED"):
        identify_over_tls(nsqd, ssl.create_default_context(cafile=str(certificates.other_ca)))


@pytest.mark.parametrize(
    ("which", "reason"), [("expired", "expired"), ("other_host", "IP address mismatch")]
)
def test_a_bad_certificate_is_bad_for_one_reason_only(
    which: str, reason: str, make_nsqd: MakeNsqd, certificates: Certificates
) -> None:
    nsqd = make_nsqd(*getattr(certificates, which).nsqd_args())
    trusting = ssl.create_default_context(cafile=str(certificates.ca))
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        identify_over_tls(nsqd, trusting)


def test_nsqd_asks_authd_and_obeys(make_nsqd: MakeNsqd, authd: Authd, topic: str) -> None:
    nsqd = make_nsqd(*authd.nsqd_args())
    authd.grant("open sesame", topic=topic, permissions=["subscribe"], identity="ali")

    def ask(secret: bytes) -> bytes:
        with socket.create_connection(nsqd.tcp, timeout=10) as client:
            size = len(secret).to_bytes(4, "big")
            client.sendall(b"  V2AUTH\n" + size + secret + f"SUB {topic} c\n".encode())
            head = client.recv(8, socket.MSG_WAITALL)
            return client.recv(int.from_bytes(head[:4], "big") - 4, socket.MSG_WAITALL)

    assert b'"identity":"ali"' in ask(b"open sesame")
    assert ask(b"barley").startswith(b"E_AUTH_FAILED")
    assert [query["secret"] for query in authd.queries][:2] == ["open sesame", "barley"]
    assert authd.queries[0]["remote_ip"] == "127.0.0.1"


def test_the_command_line_runs_apart_from_the_users_settings(
    nsqtools_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQTOOLS_TOPIC", "leaked")
    environment = nsqtools_cli._environment({"NSQTOOLS_CHANNEL": "given"})
    assert "NSQTOOLS_TOPIC" not in environment
    assert environment["NSQTOOLS_CHANNEL"] == "given"
    result = nsqtools_cli("--version")
    assert (result.code, result.stderr) == (0, "")
    assert b"nsqtools" in result.stdout


def test_a_started_command_line_is_ended_with_its_children(
    nsqtools_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import subprocess; subprocess.Popen(['sleep', '600']); print('started')"
    monkeypatch.setattr("tests.support.process.COMMAND", (sys.executable, "-c", script))
    process = nsqtools_cli.start(stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"started\n"
    with os.fdopen(os.dup(process.stdout.fileno())) as held_by_child:
        nsqtools_cli.close()
        ended, _, _ = select.select([held_by_child], [], [], 10)
        assert ended
