"""``relay`` while it or its destination is killed: nothing is lost, and little comes twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.consuming import make_known
from tests.support.eventually import eventually
from tests.support.relays import CHANNEL, held, numbered, published, to
from tests.support.servers import at, empty

if TYPE_CHECKING:
    import random

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd

pytestmark = pytest.mark.nsqd_only("it is about messages on disk")

WINDOW = 500
PACE = ("--rate", "10000", "--max-in-flight", str(WINDOW))


@pytest.fixture
def sizes(full: bool) -> tuple[int, int]:
    """How many messages, and how often something is killed."""
    return (12_000, 5) if full else (2000, 2)


def moments(rng: random.Random, sizes: tuple[int, int]) -> list[int]:
    """How many messages are left at most, each time something is killed."""
    messages, rounds = sizes
    part = messages // rounds
    return [messages - number * part - rng.randrange(part) for number in range(rounds)]


def reached(source: Nsqd, topic: str, left: int) -> None:
    eventually(lambda: source.channel(topic, CHANNEL)["depth"] <= left)


def test_relay_itself_killed_again_and_again_loses_nothing(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, rng: random.Random, sizes: tuple[int, int]
) -> None:
    messages, rounds = sizes
    source, goal = make_nsqd("-msg-timeout=1s"), make_nsqd()
    source.create(topic, CHANNEL)
    make_known(source, topic)
    source.delete(topic, "c")
    published(source, topic, numbered(messages))
    goal.create(topic, "c")
    command = ("relay", "--topic", topic, *to(goal), *PACE)
    for left in moments(rng, sizes):
        relay = nsqtools_cli.start(*command, *at(source))
        reached(source, topic, left)
        relay.kill()
        relay.wait(100)
    ended = nsqtools_cli(*command, *empty(source))
    assert ended.code == 0, ended.stderr
    found = held(nsqtools_cli, goal, topic)
    assert set(found) == set(numbered(messages))
    assert found.total() - messages <= rounds * WINDOW
