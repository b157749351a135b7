"""Whatever endpoints answer: who gets a message, how often, and what becomes of it."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from nsqtools.policy.verdicts import Statuses
from tests.support.archiving import message
from tests.support.clock import run_virtual
from tests.support.delivering import OK, REFUSES, RESETS, Answer, Delivering, Sent, delivering
from tests.support.raw import unprefixed

LATE = Answer(after=1e3)
STATUSES = (302, 400, 408, 422, 425, 429, 500)
ANSWERS = [*[OK] * 3, *map(Answer, STATUSES), REFUSES, RESETS, Answer(after=2), LATE]
BLAMING = (400, 422)
"""Statuses for which the messages of a batch are tried one by one; 422 drops one."""


def bodies_of(sent: Sent) -> list[bytes]:
    return [sent.body] if "x-nsq-id" in sent.request.headers else unprefixed(sent.body)


def is_taken(sent: Sent) -> bool:
    return sent.answer.status == 200 and not sent.answer.error and sent.answer is not LATE


async def deliver_until_settled(run: Delivering, mode: str, count: int, bad: set[bytes]) -> None:
    """Redeliver what comes back, as nsqd does, until only what is refused for ever is left."""
    left = {b"%d" % number: message(b"%d" % number, number=number) for number in range(count)}
    for _ in range(20):
        first, finished = len(run.web.sent), len(run.finished)
        run.requeued.clear()
        await run.deliver(*left.values(), starved=True, wait=1000)
        back = [body for body, *_ in run.requeued]
        assert sorted([*back, *run.finished[finished:]]) == sorted(left)
        assert all(backoff for *_, backoff in run.requeued)
        for body in left if mode != "all" else ():
            check_order([sent for sent in run.web.sent[first:] if body in bodies_of(sent)])
        left = {body: left[body] for body in back}
    assert left.keys() <= bad


def check_order(requests: Sequence[Sent]) -> None:
    """A request that may have arrived is not followed by another to any endpoint.

    Exceptions are batches that one message may have spoilt.
    """
    for sent, later in pairwise(requests):
        blames = sent.answer.status in BLAMING and len(bodies_of(sent)) > 1
        assert sent.answer is REFUSES or (blames and len(bodies_of(later)) == 1)


@given(
    mode=st.sampled_from(["round-robin", "hostpool", "epsilon-greedy", "all"]),
    hosts=st.sampled_from(["a", "ab", "abc"]),
    limits=st.fixed_dictionaries({"size": st.integers(1, 3), "workers": st.integers(1, 3)}),
    answers=st.lists(st.sampled_from(ANSWERS), max_size=15),
    count=st.integers(1, 6),
    bad=st.sets(st.sampled_from([b"0", b"2"])),
)
@example("all", "ab", {"size": 1, "workers": 1}, [Answer(422), Answer(500)], 1, set())
@example("all", "ab", {"size": 2, "workers": 1}, [Answer(422), Answer(500)], 2, set())
@example("all", "ab", {"size": 3, "workers": 1}, [OK, Answer(400), Answer(422)], 3, {b"2"})
def test_each_message_is_taken_once_or_a_dead_letter_and_finished_only_then(
    mode: str,
    hosts: str,
    limits: dict[str, Any],
    answers: list[Answer],
    count: int,
    bad: set[bytes],
) -> None:
    async def live() -> None:
        statuses = Statuses(drop_on="422")
        async with delivering(hosts=hosts, mode=mode, statuses=statuses, **limits) as run:
            for number, host in enumerate(hosts):
                run.web.next[host] = answers[number :: len(hosts)]
            run.web.refuses = lambda body: any(each in body for each in bad)
            await deliver_until_settled(run, mode, count, bad)
            assert max(run.web.most.values()) <= limits["workers"]
            for body in run.finished:
                mine = [sent for sent in run.web.sent if body in bodies_of(sent)]
                took = Counter(sent.host for sent in mine if is_taken(sent))
                alone = [sent for sent in mine if len(bodies_of(sent)) == 1]
                drops = {sent.host for sent in alone if sent.answer.status == 422} - took.keys()
                assert set(took.values()) <= {1}
                assert run.letters.bodies.count(body) == bool(drops)
                assert len(took) + len(drops) == (len(hosts) if mode == "all" else 1)

    run_virtual(live())
