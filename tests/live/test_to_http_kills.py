"""``to-http`` and nsqd killed at random moments, while numbered messages are delivered.

A moment is a number of deliveries, drawn by chance: it does not depend on how fast the machine is.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.posting import Posting
from tests.support.webserver import WebServer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd

    Make = Callable[..., Posting]

WINDOW = 200  # --max-in-flight, unless a test has another one

MSG_TIMEOUT = "-msg-timeout=1s"
"""What was in flight with a killed process comes again after that."""

pytestmark = pytest.mark.nsqd_only("it is about processes that end, and messages on disk")


@pytest.fixture
def make_posting(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Make:
    def make(messages: int, *args: str) -> Posting:
        posting = Posting(nsqtools_cli, make_nsqd(*args), topic, tmp_path)
        posting.make_known()
        posting.numbers(messages)
        return posting

    return make


def moments(rng: random.Random, messages: int, rounds: int) -> list[int]:
    return sorted(rng.sample(range(messages), rounds))


def received(web: WebServer) -> int:
    return sum([len(each.ids) for each in web.requests])


def reached(web: WebServer, moment: int) -> None:
    eventually(lambda: received(web) >= moment)


@pytest.mark.parametrize("batch", [1, 50])
def test_kill_9_loses_nothing_and_doubles_no_more_than_was_in_flight(
    make_posting: Make, rng: random.Random, batch: int, full: bool
) -> None:
    rounds, messages = (10, 20_000) if full else (2, 3000)
    messages *= 5 if batch > 1 else 1
    posting = make_posting(messages, MSG_TIMEOUT)
    options = "--batch", str(batch), "-n", "20"
    with WebServer() as web:
        for moment in moments(rng, messages, rounds):
            poster = posting.start("--post", web.url(), *options)
            reached(web, moment)
            poster.kill()
        posting.start("--post", web.url(), *options).finish()
        found = Counter(int(body) for each in web.requests for body in each.body.split())
    assert found.keys() == set(range(messages))
    assert found.total() - messages <= rounds * WINDOW


def kill(nsqd: Nsqd) -> None:
    nsqd.kill()
    nsqd.start()


def restart(nsqd: Nsqd) -> None:
    nsqd.restart()
