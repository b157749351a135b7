"""Messages published again by the ui: which ones, and what is noted about them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from nsqtools.config.connection import ConsumerConfig
from nsqtools.engine.connector import Subscription
from nsqtools.names import Address
from nsqtools.redrive.redriver import Redriver
from nsqtools.redrive.republication import (
    ChannelAgain,
    LettersAgain,
    lines_published,
    origin_in_file,
    origin_of,
)
from nsqtools.sinks.deadletters import read_dead_letters
from tests.support.archiving import message


class Got:
    """A publisher that keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        self.bodies += bodies

    async def close(self) -> None:
        pass


def test_a_message_of_another_nsqd_with_the_same_id_is_not_touched() -> None:
    one, other = Address("127.0.0.1", 4150), Address("127.0.0.1", 5150)
    shown = message(b"shown")
    source = Subscription(topic="t.dead", channel="c", nsqds=(one, other))
    chosen = [(origin_of(one, shown), b"edited")]
    job = ChannelAgain("t", chosen, 1.0, source, (), ConsumerConfig())
    assert job.bodies(other, [message(b"never shown")]) == [None]
    assert job.bodies(one, [shown]) == [b"edited"]
    job.settled(other, message(b"never shown"), "")
    assert job.published == 0
    job.settled(one, shown, "")
    assert job.published == 1


def test_a_letter_of_a_file_replaced_since_the_page_is_not_published(tmp_path: Path) -> None:
    file = tmp_path / "t.dead.jsonl"
    file.write_bytes(b'{"topic":"t","body":"1"}\n{"topic":"t","body":"2"}\n')
    letters, _ = read_dead_letters(str(file), 0, 10, 1000)
    chosen = [(origin_in_file(file.name, each), each.body) for each in letters]
    file.write_bytes(b'{"topic":"t","body":"1"}\n{"topic":"t","body":"3"}\n')
    job, got = LettersAgain("t", chosen, 100.0, str(file), 1000, asyncio.Lock()), Got()
    asyncio.run(job._publish_all(Redriver(got)))
    assert (got.bodies, job.published, job.failed) == ([b"1"], 1, 1)
    assert [(each.start, each.end) for each in lines_published(str(file), 1000)] == [(0, 25)]


def test_two_jobs_of_a_directory_take_turns(tmp_path: Path) -> None:
    file = tmp_path / "t.dead.jsonl"
    file.write_bytes(b"".join(b'{"topic":"t","body":"%d"}\n' % n for n in range(6)))
    letters, _ = read_dead_letters(str(file), 0, 10, 1000)
    chosen = [(origin_in_file(file.name, each), each.body) for each in letters]
    got = Got()

    async def run() -> list[LettersAgain]:
        turn = asyncio.Lock()
        jobs = [
            LettersAgain("t", part, 1000.0, str(file), 1000, turn)
            for part in (chosen[:3], chosen[3:])
        ]
        await asyncio.gather(*(job._publish_all(Redriver(got)) for job in jobs))
        return jobs

    assert [(job.published, job.failed) for job in asyncio.run(run())] == [(3, 0)] * 2
    assert sorted(got.bodies) == [b"%d" % n for n in range(6)]
    (noted,) = lines_published(str(file), 1000)
    assert (noted.start, noted.end) == (0, 6 * 25)
