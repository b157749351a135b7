"""What systemd hears of a command."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.servers import at

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import Nsqd


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("tail", "--topic", "t"), "1 topic, 1 connection, "),
        (("stats", "--serve", ":0"), "not scraped yet"),
    ],
    ids=["tail", "stats"],
)
def test_systemd_hears_that_it_is_ready_how_it_is_and_that_it_stops(
    nsqtools_cli: Cli, nsqd: Nsqd, tmp_path: Path, words: tuple[str, ...], status: str
) -> None:
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)

        def hears(text: str) -> bool:
            while not any(text in each for each in told):
                told.append(listener.recv(4096).decode())
            return True

        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        where = at(nsqd) if words[0] == "tail" else ("--nsqd-http-address", str(nsqd.http))
        process = nsqtools_cli.start(*words, *where, env=environment)
        eventually(lambda: hears("READY=1"))
        eventually(lambda: hears(f"WATCHDOG=1\nSTATUS={status}"))
        process.send_signal(signal.SIGTERM)
        eventually(lambda: hears("STOPPING=1"))
        assert process.wait(100) == 0
    assert told.count("READY=1") == 1
