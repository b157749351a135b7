"""RDY: what is sent at all, shares, caps, and handlers that fall behind."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsqtools.policy.rdy import Mode, Peer, bytes_limit, is_starved
from tests.support.facts import (
    NOW,
    any_limit,
    any_mode,
    any_peers,
    apply,
    deliver,
    make,
    plan,
    settle_down,
)

if TYPE_CHECKING:
    from random import Random


# Properties of every single plan.


@settings(max_examples=300)
@given(any_peers(), any_limit, any_mode, st.randoms(use_true_random=False))
def test_a_plan_keeps_to_every_bound_and_is_made_once(
    peers: list[Peer], limit: int, mode: Mode, rng: Random
) -> None:
    known = {peer.address: peer for peer in peers if not peer.closing}
    rdy = {address: peer.rdy for address, peer in known.items()}
    before = sum(rdy.values())
    commands = plan(peers, limit, mode)
    for address, count in commands.items():
        peer = known[address]
        assert 0 <= count <= peer.max_rdy
        assert count != peer.rdy or (peer.counts_down and count)
        rdy[address] = count
        assert sum(rdy.values()) <= max(limit, before)
        before = sum(rdy.values())
    assert before <= limit
    changes = [count - known[address].rdy for address, count in commands.items()]
    assert changes == sorted(changes, key=lambda change: change >= 0)
    if mode is Mode.STOPPED:
        assert before == 0
    elif mode is Mode.PROBING and limit:
        assert before == any(peer.max_rdy for peer in known.values())
    apply(peers, commands)
    rng.shuffle(peers)
    assert plan(peers, limit, mode, rng=rng) == {}


@given(any_peers(), any_limit)
def test_running_shares_all_slots_evenly_among_peers_that_keep_up(
    peers: list[Peer], limit: int
) -> None:
    for peer in peers:
        peer.in_flight, peer.fresh = 0, False
    settle_down(peers, limit)
    takers = [peer for peer in peers if not peer.closing and peer.max_rdy]
    assert sum(peer.rdy for peer in takers) == min(limit, sum(peer.max_rdy for peer in takers))
    uncapped = [peer.rdy for peer in takers if peer.rdy < peer.max_rdy]
    if uncapped:
        assert max(peer.rdy for peer in takers) <= min(uncapped) + 1


# Sharing, by example.


@pytest.mark.parametrize(
    ("limit", "caps", "expected"),
    [
        (5, [2500] * 3, [2, 2, 1]),
        (6000, [2500] * 2, [2500, 2500]),
        (10, [1, 2500, 2500], [1, 5, 4]),
        (10, [2500, 2500, 2], [4, 4, 2]),
        (12, [2, 4, 2500], [2, 4, 6]),
    ],
)
def test_slots_are_shared(limit: int, caps: list[int], expected: list[int]) -> None:
    peers = [make(n, max_rdy=cap) for n, cap in enumerate(caps)]
    assert settle_down(peers, limit) == expected


def test_who_has_the_bigger_share_keeps_it() -> None:
    peers = [make(0, rdy=1), make(1, rdy=2), make(2, rdy=2)]
    assert plan(peers, 5) == {}
    peers.append(make(3))
    assert settle_down(peers, 5) == [1, 2, 1, 1]


def test_a_fresh_peer_gets_1_and_others_do_not_get_its_share() -> None:
    peers = [make(0, rdy=100), make(1, fresh=True)]
    assert settle_down(peers, 100) == [50, 1]
    deliver(peers[1])
    assert settle_down(peers, 100) == [50, 50]


def test_the_remainder_goes_to_who_can_use_it() -> None:
    peers = [make(0, fresh=True), make(1, fresh=True), make(2)]
    assert settle_down(peers, 4) == [1, 1, 2]


# Falling behind.


def test_lowering_sends_the_target_and_not_0_although_more_is_in_flight() -> None:
    peers = [make(0, rdy=2500, in_flight=2500, received=9999), make(1)]
    assert settle_down(peers, 2500) == [1250, 1250]
    assert plan(peers, 2500) == {}
    deliver(peers[0], count=40)  # on its way when RDY was lowered
    assert plan(peers, 2500) == {}


def test_a_peer_that_exceeds_rdy_rests_until_half_its_share_is_settled() -> None:
    peers = [make(0, rdy=10, in_flight=11, received=11), make(1, rdy=10)]
    assert settle_down(peers, 20) == [0, 10]
    for in_flight in (15, 11, 10, 6):
        peers[0].in_flight = in_flight
        assert plan(peers, 20) == {}
    peers[0].in_flight = 5
    assert settle_down(peers, 20) == [10, 10]
    # What exceeds the old RDY but not the new one is no reason to rest, nor is what fills it.
    assert settle_down([make(0, rdy=10, in_flight=11, received=11)], 100) == [100]
    assert plan([make(0, rdy=100, in_flight=100, received=5000)], 100) == {}


def test_a_resting_peer_keeps_its_share_but_not_the_remainder() -> None:
    peers = [make(0, rdy=2, in_flight=3, received=3), make(1, rdy=2), make(2, rdy=1)]
    assert settle_down(peers, 5) == [0, 2, 2]


def test_the_slot_of_a_resting_peer_goes_to_one_that_waits() -> None:
    peers = [make(0, rdy=1, in_flight=2, received=2), make(1, served=NOW), make(2, in_flight=1)]
    assert settle_down(peers, 1) == [0, 1, 0]


@given(
    share=st.integers(1, 50),
    steps=st.lists(st.sampled_from(["time out", "settle", "settle one"]), max_size=60),
)
def test_a_handler_that_is_behind_never_has_much_over_its_share(
    share: int, steps: list[str]
) -> None:
    """An nsqd that times messages out and sends others, and a plan whenever one comes."""
    peer = make(0)
    at_nsqd = 0  # what nsqd believes to be in flight
    for step in steps:
        if step == "time out":
            at_nsqd = 0
        elif step == "settle":
            peer.in_flight = at_nsqd = 0
        elif peer.in_flight:
            peer.in_flight -= 1
            at_nsqd = max(0, at_nsqd - 1)
        settle_down([peer], share)
        while at_nsqd < peer.rdy:
            at_nsqd += 1
            deliver(peer)
            settle_down([peer], share)
        assert peer.in_flight <= share + share // 2 + 1
        if not peer.in_flight:
            assert peer.rdy


# An nsqd that counts RDY down.


@pytest.mark.parametrize(
    ("rdy", "received", "refreshed"),
    [(100, 75, False), (100, 76, True), (1, 0, False), (1, 1, True), (2, 2, True)],
)
def test_an_old_nsqd_gets_rdy_again_below_a_quarter_of_it(
    rdy: int, received: int, refreshed: bool
) -> None:
    peers = [make(0, rdy=rdy, received=received, counts_down=True)]
    assert plan(peers, rdy) == ({peers[0].address: rdy} if refreshed else {})
    peers[0].counts_down = False
    assert plan(peers, rdy) == {}
    # One that exceeds RDY is stopped instead.
    over = make(0, rdy=4, in_flight=5, received=4, counts_down=True)
    assert plan([over], 4) == {over.address: 0}


# Bytes and starvation.


@example(limit=30, budget=33, mean=1.1)
@given(limit=any_limit, budget=st.integers(1, 1 << 30), mean=st.floats(0, 1 << 31))
def test_bytes_in_flight_stay_within_the_budget(limit: int, budget: int, mean: float) -> None:
    allowed = bytes_limit(limit, budget, mean)
    exact = Fraction(mean)  # 30 * 1.1 is a little more than 33, but not as a float
    assert min(limit, 1) <= allowed <= limit
    assert allowed <= 1 or allowed * exact <= budget
    if allowed < limit and exact <= budget:
        assert (allowed + 1) * exact > budget


@pytest.mark.parametrize(
    ("limit", "budget", "mean", "expected"),
    [
        (200, 64 << 20, 200.0, 200),
        (200, 64 << 20, 1 << 20, 64),
        (200, 1000, 5000.0, 1),
        (200, 1000, 1e-300, 200),
    ],
)
def test_bytes_lower_max_in_flight(limit: int, budget: int, mean: float, expected: int) -> None:
    assert bytes_limit(limit, budget, mean) == expected


@pytest.mark.parametrize(
    ("rdy", "in_flight", "starved"),
    [(100, 84, False), (100, 85, True), (0, 0, False), (0, 1, True)],
)
def test_starvation_is_seen_at_85_percent(rdy: int, in_flight: int, starved: bool) -> None:
    assert is_starved([make(0), make(1, rdy=rdy, in_flight=in_flight)]) is starved
    assert not is_starved([make(1, rdy=rdy, in_flight=in_flight, closing=True)])
