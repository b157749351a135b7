import asyncio
import json
import random
from collections.abc import Sequence
from itertools import islice, repeat

import pytest

from nsqtools.sandbox.events import publish_at_rate, sample_events
from tests.support.clock import VirtualLoop, elapse, run_virtual


def test_events_are_json_objects_of_one_shape() -> None:
    times = iter(range(1000))
    bodies = list(islice(sample_events(random.Random(1), lambda: next(times)), 1000))
    events = [json.loads(body) for body in bodies]
    assert [event["id"] for event in events] == list(range(1, 1001))
    assert events[999]["time"] == "1970-01-01T00:16:39.000+00:00"
    keys = ["id", "time", "kind", "user", "country", "product", "quantity", "amount"]
    assert {tuple(event) for event in events} == {tuple(keys)}
    assert not any(b"\n" in body for body in bodies)


def published(rate: float, seconds: float, stall: float = 0.0) -> list[tuple[float, int]]:
    """When, in virtual seconds, and how many; the first publish takes ``stall`` seconds."""
    batches: list[tuple[float, int]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def publish(bodies: Sequence[bytes]) -> None:
            batches.append((loop.time(), len(bodies)))
            if stall and len(batches) == 1:
                loop.advance(stall)

        task = asyncio.create_task(publish_at_rate(publish, repeat(b"x"), rate))
        await elapse(seconds)
        task.cancel()

    run_virtual(run())
    return batches


@pytest.mark.parametrize("rate", [0.01, 0.3, 7.0, 333.3, 100_000.0])
def test_the_rate_is_kept_without_drift(rate: float) -> None:
    seconds = max(200.0, 10 / rate) if rate <= 1000 else 5.0
    sent = 0
    for at, count in [*published(rate, seconds), (seconds, 0)]:
        sent += count
        assert at * rate - max(2, 0.11 * rate) <= sent <= at * rate + 1e-6


def test_a_long_stall_is_not_made_up_for() -> None:
    sent = sum(count for _, count in published(100.0, 1000.0, stall=500.0))
    assert sent == pytest.approx(100 * (1000 - 500 + 1), rel=0.01)
