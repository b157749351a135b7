"""What systemd is told, over real datagram sockets."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from nsqtools.net.systemd import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        yield listener


def told(listener: socket.socket) -> list[str]:
    """All datagrams until now."""
    found = []
    while True:
        try:
            found.append(listener.recv(4096).decode())
        except BlockingIOError:
            return found


def test_it_is_ready_once_then_alive_then_stopping(listener: socket.socket, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    listener.bind(path)
    notifier = Notifier({"NOTIFY_SOCKET": path})
    notifier.ready()
    notifier.ready()
    notifier.beat("3 topics\nWATCHDOG=trigger")
    notifier.stopping()
    assert told(listener) == ["READY=1", "STATUS=3 topics WATCHDOG=trigger", "STOPPING=1"]
    assert notifier.interval == 10


def test_an_abstract_socket_is_written_with_an_at_sign(listener: socket.socket) -> None:
    name = f"nsqtools-test-{os.getpid()}"
    listener.bind(f"\0{name}")
    Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
    assert told(listener) == ["READY=1"]


@pytest.mark.parametrize(
    ("environment", "interval", "watched"),
    [
        ({"WATCHDOG_USEC": "4000000"}, 2.0, True),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}, 2.0, True),
        ({"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}, 10.0, False),
        ({"WATCHDOG_USEC": "60000000"}, 10.0, True),
        ({"WATCHDOG_USEC": "0"}, 10.0, False),
        ({"WATCHDOG_USEC": "soon"}, 10.0, False),
        ({}, 10.0, False),
    ],
)
def test_a_watchdog_that_is_ours_hears_twice_in_its_time(
    listener: socket.socket,
    tmp_path: Path,
    environment: dict[str, str],
    interval: float,
    watched: bool,
) -> None:
    path = str(tmp_path / "notify")
    listener.bind(path)
    notifier = Notifier({"NOTIFY_SOCKET": path, **environment})
    assert notifier.interval == interval
    notifier.ready()
    notifier.beat("well")
    assert told(listener)[1:] == ["WATCHDOG=1\nSTATUS=well" if watched else "STATUS=well"]


def test_until_it_is_ready_each_beat_asks_for_more_time_than_two_intervals(
    listener: socket.socket, tmp_path: Path
) -> None:
    path = str(tmp_path / "notify")
    listener.bind(path)
    notifier = Notifier({"NOTIFY_SOCKET": path})
    notifier.beat("recovering")
    notifier.ready()
    notifier.beat("well")
    assert told(listener) == [
        "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=recovering",
        "READY=1",
        "STATUS=well",
    ]


def test_a_socket_that_is_gone_or_full_or_no_address_disturbs_nothing(
    listener: socket.socket, tmp_path: Path
) -> None:
    path = str(tmp_path / "notify")
    Notifier({"NOTIFY_SOCKET": path}).ready()
    Notifier({"NOTIFY_SOCKET": "x" * 1000}).ready()
    listener.bind(path)
    notifier = Notifier({"NOTIFY_SOCKET": path})
    for _ in range(10_000):  # more than a queue of datagrams takes
        notifier.beat("well")
    assert 0 < len(told(listener)) < 10_000
