"""However many nsqds are listed and dead: a command ends in its time, and stays small."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.dead import dead_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqtools.names import Address
    from tests.support.process import Cli

TIMEOUT = 4
SLACK = 26.0
"""Seconds besides --timeout, for a machine that is busy with much else."""
MEMORY = 150 << 10
"""KiB, as the kernel counts them."""


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Address]:
    with dead_cluster(refusing=9_500, hanging=500) as address:
        yield address


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (("stats", "--once"), {3}),
        (("topic", "pause", "t"), {1, 3, 4}),
        (("doctor", "--topic", "t"), {1, 3}),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_command_ends_in_time_and_stays_small(
    nsqtools_cli: Cli, lookupd: Address, words: tuple[str, ...], codes: set[int]
) -> None:
    where = ("--lookupd-http-address", str(lookupd), "--timeout", f"{TIMEOUT}s")
    began = time.monotonic()
    ended = nsqtools_cli.measured(*words, *where)
    took = time.monotonic() - began
    assert ended.code in codes, ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr
    assert took < TIMEOUT + SLACK
    assert ended.peak < MEMORY


def test_a_list_of_very_many_nsqds_is_not_used_as_a_whole(nsqtools_cli: Cli) -> None:
    with dead_cluster(refusing=200_000) as address:
        where = ("--topic", "t", "--channel", "c", "--lookupd-http-address", str(address))
        ended = nsqtools_cli.measured("tail", "-n", "1", "--max-duration", "1m", *where)
    assert ended.code in {1, 2, 3}, ended.stderr[-2000:]
    assert (lines := [each for each in ended.stderr.splitlines() if "16 MiB" in each])
    assert all(str(address) in line for line in lines)
    assert ended.peak < MEMORY
