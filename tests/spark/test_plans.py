"""Quotas from depths in tasks, and offsets through Spark's log."""

import json
import re
from collections import Counter
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.spark.source.plans import BatchPlan, Offset, Quota, plan

Depths = dict[tuple[str, str], int]

STREAM = "0123456789abcdef" * 2
TASKS = ((Quota("orders", "a:4150", 7),), (Quota("orders", "[::1]:4150", 2),))
OFFSET = BatchPlan(STREAM, 3, TASKS).offset
# As earlier versions wrote it.
QUOTAS = {
    "stream": STREAM,
    "batch": 3,
    "quotas": [
        {"topic": "orders", "nsqd": "a:4150", "count": 7},
        {"topic": "orders", "nsqd": "[::1]:4150", "count": 2},
    ],
}

any_depths = st.dictionaries(
    st.tuples(st.sampled_from("tuv"), st.sampled_from(["a:1", "b:1", "c:1", "d:1"])),
    st.one_of(st.integers(0, 12), st.integers(0, 10**12)),
)
any_limit = st.one_of(st.none(), st.integers(0, 40), st.integers(0, 10**12))
any_connections = st.integers(1, 9)
any_tasks = st.integers(1, 9)


def shares(tasks: tuple[tuple[Quota, ...], ...]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for quota in chain.from_iterable(tasks):
        found[quota.queue] += quota.count
    return found


@given(any_depths, any_limit, any_connections, any_tasks, st.randoms(use_true_random=False))
def test_a_plan_takes_all_there_is_or_exactly_the_limit(
    depths: Depths, limit: int | None, connections: int, number: int, rng: Any
) -> None:
    """In any order of the depths, in about as many tasks as wanted, the largest first.

    A task has a topic on an nsqd once.
    """
    tasks = plan(depths, limit=limit, connections=connections, tasks=number)
    total = sum(depths.values())
    quotas = list(chain.from_iterable(tasks))
    assert sum(quota.count for quota in quotas) == (total if limit is None else min(limit, total))
    assert len(tasks) <= max(number, connections)
    for pair, share in shares(tasks).items():
        counts = [quota.count for quota in quotas if quota.queue == pair]
        assert share <= depths[pair]
        assert len(counts) <= min(connections, share)
        assert min(counts) > 0
        assert max(counts) - min(counts) <= 1
    for task in tasks:
        assert task
        assert len({quota.queue for quota in task}) == len(task)
        assert [quota.count for quota in task] == sorted(
            (each.count for each in task), reverse=True
        )
    items = list(depths.items())
    rng.shuffle(items)
    assert plan(dict(items), limit=limit, connections=connections, tasks=number) == tasks


@pytest.mark.parametrize(
    ("depths", "connections", "tasks"),
    [
        ([20_000], 2, [10_000, 10_000]),
        ([20_000], 1, [20_000]),
        ([20] * 1000, 2, [10_000, 10_000]),
        ([1_000_000] + [20] * 999, 2, [509_990, 509_990]),
        ([1000] * 3, 2, [1500, 1500]),
        ([1, 1], 2, [1, 1]),
    ],
)
def test_tasks_are_of_the_same_size_whatever_the_number_of_topics(
    depths: list[int], connections: int, tasks: list[int]
) -> None:
    named = {(f"t{number}", "a:1"): depth for number, depth in enumerate(depths)}
    found = plan(named, limit=None, connections=connections, tasks=2)
    sizes = [sum(quota.count for quota in task) for task in found]
    assert all(abs(size - wanted) <= 20 for size, wanted in zip(sizes, tasks, strict=True))


@given(any_depths, any_limit, any_connections, any_tasks)
def test_everyone_with_messages_gets_one_where_the_limit_allows_and_else_the_deepest_do(
    depths: Depths, limit: int | None, connections: int, tasks: int
) -> None:
    got = shares(plan(depths, limit=limit, connections=connections, tasks=tasks))
    waiting = sorted((depth for depth in depths.values() if depth), reverse=True)
    served = len(waiting) if limit is None else min(limit, len(waiting))
    assert sorted((depths[pair] for pair in got), reverse=True) == waiting[:served]


@given(any_depths, st.integers(0, 10**12), any_connections)
def test_shares_are_in_proportion_to_depth(depths: Depths, limit: int, connections: int) -> None:
    got = shares(plan(depths, limit=limit, connections=connections, tasks=2))
    total, waiting = sum(depths.values()), sum(depth > 0 for depth in depths.values())
    for pair, depth in depths.items():
        if waiting < limit < total:
            # One for each comes off the top, and then a share is rounded.
            assert abs(got[pair] * total - limit * depth) <= (waiting + 1) * total
        for other, less in depths.items():
            if depth >= less:
                assert got[pair] >= got[other] - (depth == less)


any_quota = st.builds(
    Quota,
    st.sampled_from(["t", "a.b-c_9", "x" * 64, "t#ephemeral"]),
    st.sampled_from(["a:4150", "127.0.0.1:1", "[::1]:65535"]),
    st.integers(1, 10**12),
)


@given(
    st.builds(
        BatchPlan,
        st.uuids().map(lambda each: each.hex),
        st.integers(0, 10**9),
        st.lists(st.lists(any_quota, min_size=1).map(tuple)).map(tuple),
    )
)
def test_a_plan_and_its_offset_come_back_as_they_were(found: BatchPlan) -> None:
    assert BatchPlan.from_bytes(found.to_bytes()) == found
    assert Offset.from_json(json.loads(json.dumps(found.offset.to_json()))) == found.offset


def test_what_an_earlier_version_wrote_is_a_plan_of_a_task_per_quota() -> None:
    assert BatchPlan.from_bytes(json.dumps(QUOTAS).encode()) == BatchPlan(STREAM, 3, TASKS)
    assert Offset.from_json(QUOTAS) == OFFSET
    empty = {"stream": STREAM, "batch": 0, "quotas": []}
    assert Offset.from_json(empty) == Offset(STREAM, 0)


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"stream": None}, "stream is None"),
        ({"stream": "../other"}, "'../other'"),
        ({"batch": -1}, "batch is -1"),
        ({"batch": True}, "batch is True"),
        ({"batch": "3"}, "batch is '3'"),
        ({"plan": None}, "plan is None"),
        ({"quotas": 7}, "int"),
        ({"quotas": ["orders"]}, "string"),
        ({"quotas": [{"topic": "orders", "nsqd": "a:4150"}]}, "'count'"),
        ({"quotas": [{"topic": "orders", "nsqd": "a:4150", "count": 0}]}, "count is 0"),
        ({"quotas": [{"topic": "a b", "nsqd": "a:4150", "count": 1}]}, "topic 'a b'"),
        ({"quotas": [{"topic": "orders", "nsqd": "a", "count": 1}]}, "address 'a'"),
        ({"quotas": [{"topic": 5, "nsqd": "a:4150", "count": 1}]}, "int"),
    ],
)
def test_an_offset_of_another_source_is_refused_by_name(
    change: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(culprit)):
        Offset.from_json(OFFSET.to_json() | change)
    foreign: list[Any] = [{"orders": {"0": 17}}, {}, [], 5, None]
    for value in foreign:
        with pytest.raises(ConfigError, match="checkpoint"):
            Offset.from_json(value)
