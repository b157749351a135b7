"""Messages published again by the ui: which ones, and what is noted about them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from nsqtools.config.connection import ClientConfig, ConsumerConfig
from nsqtools.engine.connector import Subscription
from nsqtools.engine.lookup import Backlog
from nsqtools.engine.producer import Producer
from nsqtools.errors import PublishError
from nsqtools.names import Address
from nsqtools.policy.stopping import Left
from nsqtools.redrive.republication import (
    ChannelAgain,
    LettersAgain,
    OriginSearch,
    PublishOrder,
    Republication,
    Republications,
    lines_published,
    origin_in_file,
    origin_of,
)
from nsqtools.sinks.deadletters import read_dead_letters
from tests.support.archiving import message
from tests.support.clock import elapse, virtual


class Got(Producer):
    """A producer that keeps the bodies; without ``answers`` it waits for one after the first."""

    def __init__(self, *, answers: bool = True) -> None:
        super().__init__([Address("127.0.0.1", 1)])
        self.bodies: list[bytes] = []
        self.answers = asyncio.Event()
        self.is_lost = False
        if answers:
            self.answers.set()

    async def connect(self) -> None:
        pass

    async def publish(
        self, topic: str, bodies: Sequence[bytes], *, defer: float | None = None
    ) -> None:
        self.bodies += bodies
        if len(self.bodies) > 1:
            await self.answers.wait()
        if self.is_lost:
            raise PublishError("connection lost", [0], permanent=False)


def test_a_message_of_another_nsqd_with_the_same_id_is_not_touched() -> None:
    one, other = Address("127.0.0.1", 4150), Address("127.0.0.1", 5150)
    shown = message(b"shown")
    source = Subscription(topic="t.dead", channel="c", nsqds=(one, other))
    chosen = [(origin_of(one, shown), b"edited")]
    search = OriginSearch(source, Backlog(source, ConsumerConfig()), Left(waiting=1))
    job = ChannelAgain(PublishOrder("t", chosen, 1.0, Got()), search, ConsumerConfig())
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
    chosen = [(origin_in_file(file.name, each, is_published=False), each.body) for each in letters]
    file.write_bytes(b'{"topic":"t","body":"1"}\n{"topic":"t","body":"3"}\n')
    got = Got()
    job = LettersAgain(PublishOrder("t", chosen, 100.0, got), str(file), 1000, asyncio.Lock())
    asyncio.run(job.run())
    assert (got.bodies, job.published, job.failed) == ([b"1"], 1, 1)
    assert [(each.start, each.end) for each in lines_published(str(file), 1000)] == [(0, 25)]


def test_two_jobs_of_a_directory_take_turns(tmp_path: Path) -> None:
    file = tmp_path / "t.dead.jsonl"
    file.write_bytes(b"".join(b'{"topic":"t","body":"%d"}\n' % n for n in range(6)))
    letters, _ = read_dead_letters(str(file), 0, 10, 1000)
    chosen = [(origin_in_file(file.name, each, is_published=False), each.body) for each in letters]
    got = Got()

    async def run() -> list[LettersAgain]:
        writing = asyncio.Lock()
        jobs = [
            LettersAgain(PublishOrder("t", part, 1000.0, got), str(file), 1000, writing)
            for part in (chosen[:3], chosen[3:])
        ]
        await asyncio.gather(*(job.run() for job in jobs))
        return jobs

    assert [(job.published, job.failed) for job in asyncio.run(run())] == [(3, 0)] * 2
    assert sorted(got.bodies) == [b"%d" % n for n in range(6)]
    (noted,) = lines_published(str(file), 1000)
    assert (noted.start, noted.end) == (0, 6 * 25)


@virtual
async def test_a_stopped_job_tells_what_is_published_what_is_not_and_what_is_unknown() -> None:
    chosen = [(name, b"equal") for name in "abc"]
    for end in ("answered", "cut", "lost"):
        got, jobs = Got(answers=False), Republications(ClientConfig(), "", lambda error: None)
        fast = Republication(PublishOrder("t", chosen, 10.0, got))
        slow = Republication(PublishOrder("t", chosen, 0.01, Got()))
        for name, job in (("fast", fast), ("slow", slow)):
            jobs.begin(name, job, job.run())
        await elapse(1)
        assert (len(got.bodies), slow.published) == (2, 1)
        got.is_lost = end == "lost"
        fast.stop()
        slow.stop()
        await elapse(0.1)
        assert (slow.is_over, fast.is_over) == (True, False)
        assert {each.error for each in slow.log} == {"", "not published: stopped"}
        if end != "cut":
            got.answers.set()
        await jobs.close()
        reason = "topic t: connection lost" if got.is_lost else "stopped"
        under_way = "" if end == "answered" else f"unknown whether published: {reason}"
        assert [each.error for each in fast.log] == ["", under_way, f"not published: {reason}"]


def test_a_letter_published_since_the_page_is_published_again_only_if_it_is_chosen_anew(
    tmp_path: Path,
) -> None:
    file = tmp_path / "t.dead.jsonl"
    file.write_bytes(b'{"topic":"t","body":"1"}\n')
    (letter,), _ = read_dead_letters(str(file), 0, 10, 1000)
    got = Got()
    for is_published, count in ((False, 1), (False, 1), (True, 2)):
        chosen = [(origin_in_file(file.name, letter, is_published=is_published), letter.body)]
        job = LettersAgain(PublishOrder("t", chosen, 1000.0, got), str(file), 1000, asyncio.Lock())
        asyncio.run(job.run())
        assert (len(got.bodies), job.published + job.failed) == (count, 1)


def test_a_job_that_is_stopped_while_another_writes_publishes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "t.dead.jsonl"
    file.write_bytes(b'{"topic":"t","body":"1"}\n')
    (letter,), _ = read_dead_letters(str(file), 0, 10, 1000)

    class Stopping(asyncio.Lock):
        async def __aenter__(self) -> None:
            job.stop()
            await super().__aenter__()

    got, chosen = Got(), [(origin_in_file(file.name, letter, is_published=False), letter.body)]
    job = LettersAgain(PublishOrder("t", chosen, 1000.0, got), str(file), 1000, Stopping())
    asyncio.run(job.run())
    assert (got.bodies, [each.error for each in job.log]) == ([], ["not published: stopped"])


@virtual
async def test_old_jobs_are_forgotten_but_none_that_runs() -> None:
    jobs = Republications(ClientConfig(), "", lambda error: None)
    chosen = [("a", b"a"), ("b", b"b")]
    slow = Republication(PublishOrder("t", chosen, 0.01, Got()))
    jobs.begin("slow", slow, slow.run())
    for n in range(99):
        job = Republication(PublishOrder("t", chosen[:1], 10.0, Got()))
        jobs.begin(f"{n}", job, job.run())
        await elapse(1)
    assert (len(jobs.jobs), "slow" in jobs.jobs, "98" in jobs.jobs) == (50, True, True)
    await jobs.close()
    assert [each.error for each in slow.log] == ["", "not published: stopped"]
