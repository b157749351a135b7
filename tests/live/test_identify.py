"""nsqds that allow less than IDENTIFY asks for by default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.servers import at, drained

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

STRICT = (
    "-max-output-buffer-size=32768",
    "-max-heartbeat-interval=5s",
    "-max-output-buffer-timeout=50ms",
)
NAMES = ("output_buffer_size", "heartbeat_interval", "output_buffer_timeout")


@pytest.mark.parametrize("flags", [STRICT[1:2], STRICT], ids=len)
def test_a_default_that_nsqd_refuses_is_left_to_nsqd(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, flags: tuple[str, ...]
) -> None:
    """Only ``-v`` tells of it."""
    nsqd = make_nsqd(*flags)
    nsqd.create(topic, "c")
    names = [name for name, flag in zip(NAMES, STRICT, strict=True) if flag in flags]
    for verbose in (("-v",), ()):
        published = nsqtools_cli("pub", "--topic", topic, *at(nsqd), *verbose, "hello")
        words = ("--topic", topic, "--channel", "c", "-n", "1", *at(nsqd))
        seen = nsqtools_cli("tail", *words, *verbose)
        assert (published.code, seen.code, seen.stdout) == (0, 0, b"hello\n")
        for ended in (published, seen):
            said = re.findall(r"refuses our (\w+)", ended.stderr)
            assert sorted(said) == sorted(names if verbose else [])
    assert drained(nsqd, topic, "c")
    doctor = nsqtools_cli("doctor", "--topic", topic, "--channel", "c", *at(nsqd))
    assert "E_BAD_BODY" not in doctor.stdout.decode()


@pytest.mark.parametrize(
    ("flag", "given", "named"),
    [
        (STRICT[0], ("--consumer-opt", "output_buffer_size,65537"), "output_buffer_size"),
        (STRICT[1], ("--consumer-opt", "heartbeat_interval,20s"), "heartbeat_interval"),
        ("-max-msg-timeout=1m", ("--msg-timeout", "2m"), "--msg-timeout"),
    ],
)
def test_what_was_asked_for_is_not_left_out_but_named(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    topic: str,
    flag: str,
    given: tuple[str, ...],
    named: str,
) -> None:
    nsqd = make_nsqd(flag)
    nsqd.create(topic, "c")
    command = ("--topic", topic, "--channel", "c", *given, *at(nsqd))
    for name in ("tail", "doctor"):
        ended = nsqtools_cli(name, *command)
        assert ended.code
        (line,) = (
            each
            for each in ended.stderr.splitlines() + ended.stdout.decode().splitlines()
            if "E_BAD_BODY" in each
        )
        assert named in line.partition("E_BAD_BODY")[2]
