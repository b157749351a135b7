"""nsqds that allow less than IDENTIFY asks for by default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.servers import at, drained

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd


@pytest.mark.nsqd_only("the sandbox's limits of output buffers are fixed")
@pytest.mark.parametrize("verbose", [(), ("-v",)], ids=["", "-v"])
def test_defaults_that_nsqd_refuses_are_left_to_nsqd(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, verbose: tuple[str, ...]
) -> None:
    """Only ``-v`` tells of it."""
    nsqd = make_nsqd(
        *("-max-output-buffer-size=32768", "-max-heartbeat-interval=5s"),
        "-max-output-buffer-timeout=50ms",
    )
    nsqd.create(topic, "c")
    published = nsqtools_cli("pub", "--topic", topic, *at(nsqd), *verbose, "hello")
    words = ("--topic", topic, "--channel", "c", "-n", "1", *at(nsqd))
    seen = nsqtools_cli("tail", *words, *verbose)
    assert (published.code, seen.code, seen.stdout) == (0, 0, b"hello\n")
    names = ["heartbeat_interval", "output_buffer_size", "output_buffer_timeout"]
    for ended in (published, seen):
        said = re.findall(r"refuses our (\w+)", ended.stderr)
        assert sorted(said) == (names if verbose else [])
    assert drained(nsqd, topic, "c")
    doctor = nsqtools_cli("doctor", "--topic", topic, "--channel", "c", *at(nsqd))
    assert "E_BAD_BODY" not in doctor.stdout.decode()
