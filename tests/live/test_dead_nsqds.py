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
FULL = pytest.mark.full("each command meets each kind of dead cluster")


@pytest.fixture(
    scope="module",
    params=[pytest.param({"refusing": 10_000}, marks=FULL), {"refusing": 9_500, "hanging": 500}],
    ids=str,
)
def lookupd(request: pytest.FixtureRequest) -> Iterator[Address]:
    with dead_cluster(**request.param) as address:
        yield address


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (("stats", "--once"), {3}),
        pytest.param(("stats", "--check", "--depth-crit", "1"), {2, 3}, marks=FULL),
        pytest.param(("topic", "create", "u"), {0, 4}, marks=FULL),
        (("topic", "pause", "t"), {1, 3, 4}),
        pytest.param(("channel", "create", "t", "c"), {3, 4}, marks=FULL),
        pytest.param(("channel", "delete", "t", "c", "--yes"), {3, 4}, marks=FULL),
        (("lookup", "nodes"), {0}),
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
