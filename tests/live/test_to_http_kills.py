"""``to-http`` and nsqd killed at random moments, while numbered messages are delivered.

A moment is a number of deliveries, drawn by a seeded generator: it does not depend on how fast
the machine is.
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.chance import seeded
from tests.support.eventually import eventually
from tests.support.posting import Posting
from tests.support.webserver import WebServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

ROUNDS = 10
WINDOW = 200  # --max-in-flight

MSG_TIMEOUT = "-msg-timeout=2s"
"""What was in flight with a killed process comes again after that."""


def prefixed(body: bytes) -> list[bytes]:
    """The messages of a length-prefixed batch."""
    found = []
    while body:
        end = 4 + int.from_bytes(body[:4], "big")
        found.append(body[4:end])
        body = body[end:]
    return found


def numbers(web: WebServer, *, batches: bool) -> Counter[int]:
    """How often each number came."""
    if not batches:
        return Counter(int(request.body) for request in web.requests)
    return Counter(int(body) for request in web.requests for body in prefixed(request.body))


@pytest.mark.nsqd_only("seconds of kills; the sandbox would tell nothing else")
@pytest.mark.parametrize(("batch", "messages"), [(1, 20_000), (50, 100_000)])
def test_kill_9_loses_nothing_and_doubles_no_more_than_was_in_flight(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path, batch: int, messages: int
) -> None:
    rng = seeded()
    nsqd = make_nsqd(MSG_TIMEOUT)
    nsqd.create(topic, "c")
    posting = Posting(nsqtools_cli, nsqd, topic, tmp_path)
    posting.numbers(messages)
    moments = sorted(rng.sample(range(messages), ROUNDS))
    options = "--batch", str(batch), "--batch-format", "length-prefixed", "-n", "20"
    with WebServer() as web:

        def received() -> int:
            return sum([len(each.ids) for each in web.requests]) if batch > 1 else len(web.requests)

        for moment in moments:
            poster = posting.start("--post", web.url(), *options)
            eventually(lambda moment=moment: received() >= moment, timeout=60)  # type: ignore[misc]
            poster.process.kill()
            assert poster.process.wait() == -signal.SIGKILL, poster.said
        posting.start("--post", web.url(), *options).finish(timeout=60)
        found = numbers(web, batches=batch > 1)
    assert found.keys() == set(range(messages))
    assert found.total() - messages <= ROUNDS * WINDOW


@pytest.mark.nsqd_only("the sandbox keeps nothing on disk")
def test_what_nsqd_has_on_disk_outlives_its_kill_9(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    rng = seeded()
    messages, rounds = 5000, 5
    nsqd = make_nsqd(MSG_TIMEOUT, "-mem-queue-size=0", "-sync-every=1")
    nsqd.create(topic, "c")
    posting = Posting(nsqtools_cli, nsqd, topic, tmp_path)
    posting.numbers(messages)
    with WebServer() as web:
        poster = posting.start("--post", web.url(), "--max-in-flight", "100")
        for moment in sorted(rng.sample(range(messages), rounds)):
            eventually(lambda moment=moment: len(web.requests) >= moment, timeout=60)  # type: ignore[misc]
            nsqd.kill()
            nsqd.start()
        poster.finish(timeout=60)
        found = numbers(web, batches=False)
    # What was on its way to a client is in nsqd's memory alone; so is what comes next.
    lost = set(range(messages)) - found.keys()
    assert len(lost) <= rounds * (100 + 2)
    assert found.total() - len(found) <= rounds * 100


@pytest.mark.nsqd_only("seconds of restarts; the sandbox keeps nothing on disk")
def test_a_restart_of_nsqd_loses_nothing(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    """It writes what is in flight to disk, and what was delivered meanwhile comes twice."""
    rng = seeded()
    messages, rounds = 5000, 4
    nsqd = make_nsqd()
    nsqd.create(topic, "c")
    posting = Posting(nsqtools_cli, nsqd, topic, tmp_path)
    posting.numbers(messages)
    with WebServer() as web:
        poster = posting.start("--post", web.url(), "--max-in-flight", "100")
        for moment in sorted(rng.sample(range(messages), rounds)):
            eventually(lambda moment=moment: len(web.requests) >= moment, timeout=60)  # type: ignore[misc]
            nsqd.restart()
        poster.finish(timeout=60)
        found = numbers(web, batches=False)
    assert found.keys() == set(range(messages))
    assert found.total() - len(found) <= rounds * 100


@pytest.mark.nsqd_only("seconds of kills; the sandbox would tell nothing else")
def test_sigterm_loses_nothing_and_doubles_nothing(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    rng = seeded()
    messages = 20_000
    nsqd = make_nsqd()
    nsqd.create(topic, "c")
    posting = Posting(nsqtools_cli, nsqd, topic, tmp_path)
    posting.numbers(messages)
    with WebServer() as web:
        for moment in sorted(rng.sample(range(messages), 5)):
            if (goal := max(moment, len(web.requests) + 1)) > messages:
                break
            poster = posting.start("--post", web.url())
            eventually(lambda goal=goal: len(web.requests) >= goal, timeout=60)  # type: ignore[misc]
            assert poster.end() == 0, poster.said
            assert posting.channel()["in_flight_count"] == 0
        posting.start("--post", web.url()).finish(timeout=60)
        found = numbers(web, batches=False)
    assert found == dict.fromkeys(range(messages), 1)
