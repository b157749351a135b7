"""``relay`` while it or its destination is killed: nothing is lost, and little comes twice."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.chance import seeded
from tests.support.eventually import eventually
from tests.support.relays import CHANNEL, held, numbered, published, to
from tests.support.servers import at, drained, empty

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

pytestmark = pytest.mark.nsqd_only("it is about messages on disk")

MESSAGES = 12_000
ROUNDS = 5
WINDOW = 500

ON_DISK = ("-mem-queue-size=0", "-sync-every=1")
"""What nsqd has said OK to survives SIGKILL."""


def test_a_destination_killed_again_and_again_loses_nothing(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    rng = seeded()
    source, goal = make_nsqd(), make_nsqd(*ON_DISK)
    published(source, topic, numbered(MESSAGES))
    goal.create(topic)
    relay = nsqtools_cli.start(
        *("relay", "--topic", topic, *to(goal), *empty(source)),
        *("--rate", "10000", "--max-in-flight", str(WINDOW)),
    )
    for number in range(ROUNDS):
        left = MESSAGES - rng.randrange(MESSAGES // ROUNDS) - number * (MESSAGES // ROUNDS)
        eventually(lambda left=left: source.channel(topic, CHANNEL)["depth"] <= left, 30)  # type: ignore[misc]
        goal.kill()
        goal.start()
    assert relay.wait(120) == 0
    found = held(nsqtools_cli, goal, topic)
    assert set(found) == set(numbered(MESSAGES))
    assert found.total() - MESSAGES <= ROUNDS * WINDOW
    assert drained(source, topic, CHANNEL)


def test_a_destination_that_stays_dead_loses_nothing(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    source, dead, alive = make_nsqd(), make_nsqd(*ON_DISK), make_nsqd()
    published(source, topic, numbered(MESSAGES))
    dead.create(topic)
    alive.create(topic, "c")
    relay = nsqtools_cli.start(
        *("relay", "--topic", topic, *to(dead, alive), *empty(source)),
        *("--rate", "10000", "--max-in-flight", str(WINDOW)),
    )
    eventually(lambda: source.channel(topic, CHANNEL)["depth"] < MESSAGES // 2, 30)
    dead.kill()
    assert relay.wait(120) == 0
    dead.start()
    found = held(nsqtools_cli, alive, topic) + held(nsqtools_cli, dead, topic)
    assert set(found) == set(numbered(MESSAGES))
    assert found.total() - MESSAGES <= WINDOW


def test_relay_itself_killed_again_and_again_loses_nothing(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    rng = seeded()
    source, goal = make_nsqd("-msg-timeout=2s"), make_nsqd()
    published(source, topic, numbered(MESSAGES))
    goal.create(topic, "c")
    command = ("relay", "--topic", topic, *to(goal), "--max-in-flight", str(WINDOW))
    for number in range(ROUNDS):
        most = MESSAGES - number * (MESSAGES // ROUNDS)
        left = most - rng.randrange(MESSAGES // ROUNDS)
        relay = nsqtools_cli.start(*command, "--rate", "10000", *at(source))
        eventually(lambda left=left: source.channel(topic, CHANNEL)["depth"] <= left, 30)  # type: ignore[misc]
        relay.send_signal(signal.SIGKILL)
        relay.wait(10)
    ended = nsqtools_cli(*command, *empty(source))
    assert ended.code == 0, ended.stderr
    found = held(nsqtools_cli, goal, topic)
    assert set(found) == set(numbered(MESSAGES))
    assert found.total() - MESSAGES <= ROUNDS * WINDOW
