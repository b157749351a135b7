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

relaxed = settings(deadline=None, max_examples=200)


# Properties of every single plan.


@relaxed
@given(any_peers(), any_limit, any_mode)
def test_the_sum_never_exceeds_max_in_flight_after_any_command(
    peers: list[Peer], limit: int, mode: Mode
) -> None:
    rdy = {peer.address: peer.rdy for peer in peers if not peer.closing}
    before = sum(rdy.values())
    for address, count in plan(peers, limit, mode).items():
        rdy[address] = count
        assert sum(rdy.values()) <= max(limit, before)
        before = sum(rdy.values())
    assert before <= limit


@relaxed
@given(any_peers(), any_limit, any_mode)
def test_a_command_is_within_max_rdy_and_worth_sending(
    peers: list[Peer], limit: int, mode: Mode
) -> None:
    known = {peer.address: peer for peer in peers}
    commands = plan(peers, limit, mode)
    for address, count in commands.items():
        peer = known[address]
        assert not peer.closing
        assert 0 <= count <= peer.max_rdy
        assert count != peer.rdy or (peer.counts_down and count)
    changes = [count - known[address].rdy for address, count in commands.items()]
    assert changes == sorted(changes, key=lambda change: change >= 0)


@relaxed
@given(any_peers(), any_limit, any_mode, st.randoms(use_true_random=False))
def test_planning_again_with_unchanged_facts_sends_nothing(
    peers: list[Peer], limit: int, mode: Mode, rng: Random
) -> None:
    apply(peers, plan(peers, limit, mode))
    rng.shuffle(peers)
    assert plan(peers, limit, mode, rng=rng) == {}


@relaxed
@given(any_peers(), st.integers(1, 6000))
def test_probing_is_rdy_1_on_exactly_one_connection_whatever_went_before(
    peers: list[Peer], limit: int
) -> None:
    settle_down(peers, limit, Mode.PROBING)
    rdy = [peer.rdy for peer in peers if not peer.closing]
    able = any(peer.max_rdy for peer in peers if not peer.closing)
    assert sorted(rdy, reverse=True)[:1] == ([1] if able else [0] if rdy else [])
    assert sum(rdy) == able


@relaxed
@given(any_peers(), any_limit)
def test_stopped_is_rdy_0_everywhere(peers: list[Peer], limit: int) -> None:
    settle_down(peers, limit, Mode.STOPPED)
    assert not any(peer.rdy for peer in peers if not peer.closing)


@relaxed
@given(any_peers(), any_mode)
def test_max_in_flight_0_is_rdy_0_everywhere(peers: list[Peer], mode: Mode) -> None:
    settle_down(peers, 0, mode)
    assert not any(peer.rdy for peer in peers if not peer.closing)


@relaxed
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
        (1, [2500], [1]),
        (3, [2500] * 3, [1, 1, 1]),
        (2500, [2500] * 2, [1250, 1250]),
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


def test_a_lost_peers_share_goes_to_the_others() -> None:
    peers = [make(n) for n in range(3)]
    settle_down(peers, 9)
    assert settle_down(peers[1:], 9) == [5, 4]


def test_others_are_lowered_before_one_is_raised() -> None:
    peers = [make(0), make(1, rdy=6), make(2, rdy=6)]
    assert list(plan(peers, 12).items()) == [
        (peers[1].address, 4),
        (peers[2].address, 4),
        (peers[0].address, 4),
    ]


def test_a_closing_peer_gets_nothing_and_holds_nothing() -> None:
    peers = [make(0, rdy=5, closing=True), make(1, rdy=5)]
    assert plan(peers, 10) == {peers[1].address: 10}


# Falling behind.


def test_a_saturated_peer_is_left_alone() -> None:
    peers = [make(0, rdy=100, in_flight=100, received=5000), make(1, rdy=100)]
    assert plan(peers, 200) == {}


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


def test_a_resting_peer_keeps_its_share_but_not_the_remainder() -> None:
    peers = [make(0, rdy=2, in_flight=3, received=3), make(1, rdy=2), make(2, rdy=1)]
    assert settle_down(peers, 5) == [0, 2, 2]


def test_what_exceeds_the_old_rdy_but_not_the_new_one_is_no_reason_to_rest() -> None:
    peers = [make(0, rdy=10, in_flight=11, received=11)]
    assert settle_down(peers, 100) == [100]


def test_the_slot_of_a_resting_peer_goes_to_one_that_waits() -> None:
    peers = [make(0, rdy=1, in_flight=2, received=2), make(1, served=NOW), make(2, in_flight=1)]
    assert settle_down(peers, 1) == [0, 1, 0]


@relaxed
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
    [
        (100, 75, False),
        (100, 76, True),
        (100, 100, True),
        (1, 0, False),
        (1, 1, True),
        (2, 1, False),
        (2, 2, True),
        (3, 2, False),
    ],
)
def test_an_old_nsqd_gets_rdy_again_below_a_quarter_of_it(
    rdy: int, received: int, refreshed: bool
) -> None:
    peers = [make(0, rdy=rdy, received=received, counts_down=True)]
    assert plan(peers, rdy) == ({peers[0].address: rdy} if refreshed else {})
    peers[0].counts_down = False
    assert plan(peers, rdy) == {}


def test_an_old_nsqd_that_exceeds_rdy_is_stopped_instead() -> None:
    peers = [make(0, rdy=4, in_flight=5, received=4, counts_down=True)]
    assert plan(peers, 4) == {peers[0].address: 0}


# Bytes and starvation.


@relaxed
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
        (0, 1000, 5000.0, 0),
        (200, 1000, 0.0, 200),
        (200, 1000, 1e-300, 200),
    ],
)
def test_bytes_lower_max_in_flight(limit: int, budget: int, mean: float, expected: int) -> None:
    assert bytes_limit(limit, budget, mean) == expected


@pytest.mark.parametrize(
    ("rdy", "in_flight", "starved"),
    [(100, 84, False), (100, 85, True), (1, 1, True), (1, 0, False), (0, 0, False), (0, 1, True)],
)
def test_starvation_is_seen_at_85_percent(rdy: int, in_flight: int, starved: bool) -> None:
    assert is_starved([make(0), make(1, rdy=rdy, in_flight=in_flight)]) is starved
    assert not is_starved([make(1, rdy=rdy, in_flight=in_flight, closing=True)])
