"""Quotas from depths, and offsets through Spark's log."""

import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.errors import ConfigError
from nsqtools.spark.source.plans import Offset, Quota, plan

Depths = dict[tuple[str, str], int]

STREAM = "0123456789abcdef" * 2
OFFSET = Offset(STREAM, 3, (Quota("orders", "a:4150", 7), Quota("orders", "[::1]:4150", 2)))

any_depths = st.dictionaries(
    st.tuples(st.sampled_from("tuv"), st.sampled_from(["a:1", "b:1", "c:1", "d:1"])),
    st.one_of(st.integers(0, 12), st.integers(0, 10**12)),
)
any_limit = st.one_of(st.none(), st.integers(0, 40), st.integers(0, 10**12))
any_connections = st.integers(1, 9)


def shares(quotas: tuple[Quota, ...]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for quota in quotas:
        found[quota.topic, quota.nsqd] += quota.count
    return found


@given(any_depths, any_limit, any_connections, st.randoms(use_true_random=False))
def test_a_plan_takes_all_there_is_or_exactly_the_limit(
    depths: Depths, limit: int | None, connections: int, rng: Any
) -> None:
    """In any order of the depths, and as evenly from each nsqd as its connections can be.

    The largest quotas come first.
    """
    quotas = plan(depths, limit=limit, connections=connections)
    total = sum(depths.values())
    assert sum(quota.count for quota in quotas) == (total if limit is None else min(limit, total))
    for pair, share in shares(quotas).items():
        counts = [quota.count for quota in quotas if (quota.topic, quota.nsqd) == pair]
        assert share <= depths[pair]
        assert len(counts) == min(connections, share)
        assert min(counts) > 0
        assert max(counts) - min(counts) <= 1
    assert list(quotas) == sorted(quotas, key=lambda each: (-each.count, each.topic, each.nsqd))
    items = list(depths.items())
    rng.shuffle(items)
    assert plan(dict(items), limit=limit, connections=connections) == quotas


@given(any_depths, any_limit, any_connections)
def test_everyone_with_messages_gets_one_where_the_limit_allows_and_else_the_deepest_do(
    depths: Depths, limit: int | None, connections: int
) -> None:
    got = shares(plan(depths, limit=limit, connections=connections))
    waiting = sorted((depth for depth in depths.values() if depth), reverse=True)
    served = len(waiting) if limit is None else min(limit, len(waiting))
    assert sorted((depths[pair] for pair in got), reverse=True) == waiting[:served]


@given(any_depths, st.integers(0, 10**12), any_connections)
def test_shares_are_in_proportion_to_depth(depths: Depths, limit: int, connections: int) -> None:
    got = shares(plan(depths, limit=limit, connections=connections))
    total, waiting = sum(depths.values()), sum(depth > 0 for depth in depths.values())
    for pair, depth in depths.items():
        if waiting < limit < total:
            # One for each comes off the top, and then a share is rounded.
            assert abs(got[pair] * total - limit * depth) <= (waiting + 1) * total
        for other, less in depths.items():
            if depth >= less:
                assert got[pair] >= got[other] - (depth == less)


@given(
    st.builds(
        Offset,
        st.uuids().map(lambda each: each.hex),
        st.integers(0, 10**9),
        st.lists(
            st.builds(
                Quota,
                st.sampled_from(["t", "a.b-c_9", "x" * 64, "t#ephemeral"]),
                st.sampled_from(["a:4150", "127.0.0.1:1", "[::1]:65535"]),
                st.integers(1, 10**12),
            )
        ).map(tuple),
    )
)
def test_an_offset_comes_back_from_json_as_it_was(offset: Offset) -> None:
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"stream": None}, "stream is None"),
        ({"stream": "../other"}, "'../other'"),
        ({"batch": -1}, "batch is -1"),
        ({"batch": True}, "batch is True"),
        ({"batch": "3"}, "batch is '3'"),
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
