"""Backoff on the wire, after go-nsq's ``mock_test.go``.

One difference to go-nsq runs through all transcripts: a new connection starts with RDY 1 and gets
its full share with its first message.
"""

import pytest

from nsqtools.engine.handler import Batch
from tests.support.clock import elapse
from tests.support.scripted import Recorder, ScriptedNsqd, consume, running


async def feed(nsqd: ScriptedNsqd, *bodies: bytes) -> None:
    """One message after the other, each after the last was settled."""
    for body in bodies:
        nsqd.publish(body)
        await elapse(0.01)


async def test_a_failure_stops_all_and_each_success_takes_a_level_back(nsqd: ScriptedNsqd) -> None:
    recorder = Recorder()
    async with running(consume(recorder, nsqd, max_in_flight=5, default_requeue_delay=600)):
        await feed(nsqd, b"1", b"2", b"3", b"bad")
        start = nsqd.log[-1][0]
        nsqd.publish(b"bad", b"6", b"7")
        await elapse(60)
        transcript = nsqd.commands
        times = [round(at - start) for at, text in nsqd.log if text == "RDY 1"][1:]
    assert transcript == [
        *("RDY 1", "RDY 5", "FIN 1", "FIN 2", "FIN 3"),
        *("RDY 0", "REQ 4 600000"),
        *("RDY 1", "RDY 0", "REQ 5 600000"),
        *("RDY 1", "RDY 0", "FIN 6"),
        *("RDY 1", "RDY 5", "FIN 7"),
    ]
    assert times == [2, 2 + 4, 2 + 4 + 2]


@pytest.mark.parametrize("command", ["FIN", "REQ", "TOUCH"])
async def test_a_command_that_came_too_late_is_counted_and_never_causes_backoff(
    nsqd: ScriptedNsqd, command: str
) -> None:
    nsqd.refuses = lambda text: f"E_{command}_FAILED x" if text.startswith(command) else None

    async def act(batch: Batch) -> None:
        batch.touch()
        if command == "REQ":
            batch.requeue(backoff=False)

    recorder = Recorder(act)
    consumer = consume(recorder, nsqd, max_in_flight=5)
    async with running(consumer):
        await feed(nsqd, b"1", b"2", b"3")
        assert "RDY 0" not in nsqd.commands
        assert consumer.stats().too_late == (3 if command != "TOUCH" else 0)
        assert consumer.stats().connections == 1
