"""What systemd is told, over real datagram sockets."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqtools.net.systemd import Notifier

OURS = str(os.getpid())


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        listener.bind(str(tmp_path / "notify"))
        yield listener


def notifying(listener: socket.socket, **environment: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": listener.getsockname(), **environment})


def told(listener: socket.socket) -> list[str]:
    """All datagrams until now."""
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


def test_it_asks_for_time_until_it_is_ready_once_then_is_alive_then_stopping(
    listener: socket.socket,
) -> None:
    notifier = notifying(listener)
    notifier.beat("recovering")
    notifier.ready()
    notifier.ready()
    notifier.beat("3 topics\nWATCHDOG=trigger")
    notifier.stopping()
    assert told(listener) == [
        "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=recovering",  # more than two intervals
        "READY=1",
        "STATUS=3 topics WATCHDOG=trigger",
        "STOPPING=1",
    ]
    assert notifier.interval == 10


@pytest.mark.parametrize(
    ("environment", "interval", "watched"),
    [
        ({"WATCHDOG_USEC": "4000000"}, 2.0, True),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": OURS}, 2.0, True),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}, 10.0, False),
        ({"WATCHDOG_USEC": "60000000"}, 10.0, True),
        ({"WATCHDOG_USEC": "0"}, 10.0, False),
        ({"WATCHDOG_USEC": "soon"}, 10.0, False),
        ({}, 10.0, False),
    ],
)
def test_a_watchdog_that_is_ours_hears_twice_in_its_time(
    listener: socket.socket, environment: dict[str, str], interval: float, watched: bool
) -> None:
    notifier = notifying(listener, **environment)
    assert notifier.interval == interval
    notifier.ready()
    notifier.beat("well")
    assert told(listener)[1:] == ["WATCHDOG=1\nSTATUS=well" if watched else "STATUS=well"]


def test_an_abstract_socket_is_written_with_an_at_sign() -> None:
    name = f"nsqtools-test-{OURS}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert listener.recv(4096) == b"READY=1"


def test_a_socket_that_is_gone_or_full_or_no_address_disturbs_nothing(
    listener: socket.socket, tmp_path: Path
) -> None:
    for path in (str(tmp_path / "nobody"), "x" * 1000):
        Notifier({"NOTIFY_SOCKET": path}).ready()
    notifier = notifying(listener)
    for _ in range(10_000):  # more than a queue of datagrams takes
        notifier.beat("well")
    assert 0 < len(told(listener)) < 10_000
