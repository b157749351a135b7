"""The load of ``bench`` in virtual time: when batches are sent, and from when latency counts."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pytest

from nsqtools.cli.commands.bench import load, traffic
from nsqtools.cli.commands.bench.load import Sender
from nsqtools.config.bench import BenchOptions
from nsqtools.errors import PublishError
from tests.support.clock import elapse, run_virtual

if TYPE_CHECKING:
    from nsqtools.engine.producer import Producer

LIMIT = 100_000


class SlowOnce:
    """A producer whose first answer takes a second, and the others no time."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, int]] = []

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        assert topic == "t"
        self.sent.append((asyncio.get_running_loop().time(), len(bodies)))
        if len(self.sent) == 1:
            await elapse(1)


def sent_by(producer: object, rate: float, count: float, batch: int) -> Sender:
    async def run() -> Sender:
        sender = Sender("t", bytes(8), BenchOptions(batch=batch), rate, LIMIT)
        await sender.run([cast("Producer", producer)], asyncio.Event(), count=count, duration=60)
        return sender

    return run_virtual(run())


def test_batches_that_wait_for_a_slow_answer_are_late_by_their_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "_MAX_UNANSWERED_RATED", 1)
    facts = sent_by(SlowOnce(), 100, 200, batch=1).traffic.facts()
    assert (facts["messages"], facts["seconds"]) == (200, pytest.approx(1.99))
    # 100 of them were due in the first second, and had to wait for its end.
    assert facts["p50"] == pytest.approx(0.01, abs=0.02)
    assert facts["p90"] == pytest.approx(0.8, abs=0.02)
    assert facts["max"] == pytest.approx(1.0)


def test_a_slow_answer_delays_no_other_batch_at_a_fixed_rate() -> None:
    producer = SlowOnce()
    facts = sent_by(producer, 100, 100, batch=1).traffic.facts()
    assert [at for at, _ in producer.sent] == pytest.approx([n / 100 for n in range(100)])
    assert (facts["p90"], facts["max"]) == (pytest.approx(0, abs=1e-5), pytest.approx(1.0))


@pytest.mark.parametrize(
    ("rate", "count", "batch", "sizes"),
    [
        (0, 25, 10, [10, 10, 5]),
        (0, 500, 10_000, [490, 10]),  # of 200 bytes and 4 for their number, and 4 for the MPUB
        (100, 25, 1000, [10, 10, 5]),
        (5, 3, 1000, [1, 1, 1]),
    ],
)
def test_a_batch_fits_into_a_command_and_into_a_tenth_of_a_second(
    rate: float, count: int, batch: int, sizes: list[int]
) -> None:
    producer = SlowOnce()
    sent_by(producer, rate, count, batch=batch)
    assert [size for _, size in producer.sent] == sizes


def test_the_first_failure_ends_publishing() -> None:
    class Failing(SlowOnce):
        async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
            await super().publish(topic, bodies)
            if len(self.sent) > 4:
                raise PublishError("no", [0], permanent=True)

    producer = Failing()
    sender = sent_by(producer, 10, 100, batch=1)
    assert (len(producer.sent), sender.error and sender.error.refused) == (5, [0])


def test_without_messages_there_is_no_latency() -> None:
    (line,) = traffic.text({"received": traffic.Traffic("delivery")}).splitlines()
    assert line.startswith("0 messages received")


def test_numbers_are_per_second_since_the_beginning_and_rounded() -> None:
    measured = traffic.Traffic("delivery")
    measured.began = 10.0
    for number in range(1000):
        measured.add(2, 300, 10 + (number + 1) * 0.007, took=(number + 1) / 1e6)
    facts = measured.facts()
    latencies = {name: facts.pop(name) for name in ("p50", "p90", "p99", "p99.9", "max")}
    assert facts == {
        "messages": 2000,
        "bytes": 300_000,
        "seconds": 7.0,
        "messages_per_second": 285.7,
        "bytes_per_second": 42857.1,
    }
    expected = [0.0005, 0.0009, 0.00099, 0.000999, 0.001]
    assert list(latencies.values()) == pytest.approx(expected, rel=0.02)
    assert latencies["max"] == round(latencies["max"], 7) == 0.001
    assert measured.line("received") == "2,000 received, 286/s"
    lines = traffic.text({"received": measured}).splitlines()
    assert lines[0] == "2,000 messages received in 7.00 s: 286 messages/s, 0.04 MB/s"
    assert lines[1].startswith("delivery latency in ms: p50 0.")
    assert lines[1].endswith(", max 1.00")
