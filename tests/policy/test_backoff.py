"""Backoff against a model of go-nsq's rules, and together with the RDY planner."""

from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.policy.backoff import Backoff, BackoffChange, requeue_delay
from nsqtools.policy.rdy import Mode

RNG = Random(1)


def record(
    backoff: Backoff, succeeded: int = 0, failed: int = 0, neutral: int = 0, now: float = 0.0
) -> BackoffChange | None:
    return backoff.record(succeeded=succeeded, failed=failed, neutral=neutral, now=now, rng=RNG)


@dataclass
class Model:
    """go-nsq's ``startStopContinueBackoff``, one message at a time."""

    multiplier: float
    max_duration: float
    counter: int = 0
    until: float | None = None
    wait: float = 0.0

    def signal(self, kind: str, now: float) -> None:
        if self.until is not None or not self.max_duration:
            return
        was = self.counter
        if kind == "succeeded" and self.counter:
            self.counter -= 1
        if kind == "failed" and self.multiplier * 2 ** (was + 1) <= self.max_duration:
            self.counter += 1
        if self.counter:
            self.wait = min(self.multiplier * 2**self.counter, self.max_duration)
            self.until = now + self.wait


few = st.sampled_from([0, 0, 1, 3])


@settings(max_examples=200)
@given(
    multiplier=st.sampled_from([0.5, 1.0, 3.0, 100.0]),
    max_duration=st.sampled_from([0.0, 1.0, 10.0, 120.0]),
    steps=st.lists(st.tuples(few, few, few, st.floats(0, 70)), max_size=40),
)
def test_every_history_agrees_with_go_nsq(
    multiplier: float, max_duration: float, steps: list[tuple[int, int, int, float]]
) -> None:
    backoff = Backoff("exponential", multiplier, max_duration)
    model, now = Model(multiplier, max_duration), 0.0
    assert backoff.end_wait(0.0) is None
    for failed, neutral, succeeded, later in steps:
        change = record(backoff, succeeded, failed, neutral, now)
        was, waited = model.counter, model.until is not None
        for kind, count in (("failed", failed), ("neutral", neutral), ("succeeded", succeeded)):
            for _ in range(count):
                model.signal(kind, now)
        assert (backoff.counter, backoff.until) == (model.counter, model.until)
        expected = BackoffChange(Mode.RUNNING, 0.0, 0) if was and not model.counter else None
        if model.until is not None and not waited:
            expected = BackoffChange(Mode.STOPPED, model.wait, model.counter)
        assert change == expected
        now += later
        expected = None
        if model.until is not None and now >= model.until:
            model.until = None
            expected = BackoffChange(Mode.PROBING, 0.0, model.counter)
        assert backoff.end_wait(now) == expected
        assert backoff.until == model.until
        waiting = Mode.PROBING if model.until is None else Mode.STOPPED
        assert backoff.mode is (waiting if model.counter else Mode.RUNNING)


@given(
    seed=st.integers(0, 9999),
    multiplier=st.sampled_from([1.0, 100.0]),
    steps=st.lists(st.sampled_from(["failed", "succeeded", "neutral"]), max_size=60),
)
def test_full_jitter_stays_within_the_limit_and_always_ends(
    seed: int, multiplier: float, steps: list[str]
) -> None:
    rng, now = Random(seed), 0.0
    backoff = Backoff("full_jitter", multiplier, 120.0)
    for step in [*steps, *["succeeded"] * (len(steps) + 1)]:
        results = {"succeeded": 0, "failed": 0, "neutral": 0} | {step: 1}
        change = backoff.record(**results, now=now, rng=rng)
        if change and change.mode is Mode.STOPPED:
            assert 0 <= change.wait <= 120.0
            now += change.wait
            assert backoff.end_wait(now)
    assert backoff.mode is Mode.RUNNING


def test_the_requeue_delay_grows_with_the_attempts_up_to_the_limit() -> None:
    delays = [requeue_delay(n, default_delay=90.0, max_delay=900.0) for n in (1, 2, 10, 11)]
    assert delays == [90.0, 180.0, 900.0, 900.0]
    assert requeue_delay(1, default_delay=90.0, max_delay=10.0) == 10.0
