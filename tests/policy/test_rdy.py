"""RDY: what is sent at all, shares, caps, slow handlers, and turns where slots are few."""

import math
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsqtools.names import Address
from nsqtools.policy.rdy import Mode, Peer, RdyPlanner, bytes_limit, is_starved

IDLE, LONG = 10.0, 30.0
NOW = 1000.0
plan = partial(RdyPlanner(IDLE, LONG).plan, mode=Mode.RUNNING, now=NOW, rng=Random(1))


def make(number: int, **facts: Any) -> Peer:
    usual = {"fresh": False, "last_message": NOW, "rdy_since": NOW}
    return Peer(Address("nsqd", 4150 + number), **usual | facts)


def apply(peers: list[Peer], commands: dict[Address, int], now: float = NOW) -> None:
    for peer in peers:
        if peer.address in commands:
            count = commands[peer.address]
            if peer.rdy:
                peer.served = now
            if count != peer.rdy:
                peer.rdy_since = now
            peer.rdy, peer.received = count, 0


def settle_down(peers: list[Peer], max_in_flight: int, now: float = NOW) -> list[int]:
    """Plan, send, and return everyone's RDY."""
    apply(peers, plan(peers, max_in_flight=max_in_flight, now=now), now)
    return [peer.rdy for peer in peers]


def deliver(peer: Peer, now: float = NOW, count: int = 1) -> None:
    peer.in_flight += count
    peer.received += count
    peer.last_message = now
    peer.fresh = False


def any_peers(rng: Random) -> list[Peer]:
    """Peers with arbitrary facts, even such as no history leads to."""

    def count() -> int:
        return rng.choice((0, 0, 1, rng.randrange(13), rng.randrange(3000)))

    def moment() -> float:
        return rng.choice((0.0, NOW, rng.uniform(0, NOW)))

    return [
        Peer(
            Address("nsqd", number),
            rdy=count(),
            max_rdy=rng.choice((0, 1, 2, 5, 100, 2500)),
            in_flight=count(),
            received=count(),
            counts_down=rng.random() < 0.5,
            fresh=rng.random() < 0.5,
            last_message=moment(),
            rdy_since=moment(),
            served=rng.choice((-math.inf, moment())),
            closing=rng.random() < 0.25,
        )
        for number in range(rng.randrange(9))
    ]


def any_limit(rng: Random) -> int:
    return rng.choice((rng.randrange(13), rng.randrange(6000)))


# Properties of every single plan.


def test_a_plan_keeps_to_every_bound_and_is_made_once(rng: Random) -> None:
    for mode in [*Mode] * 500:
        peers, limit = any_peers(rng), any_limit(rng)
        known = {peer.address: peer for peer in peers if not peer.closing}
        rdy = {address: peer.rdy for address, peer in known.items()}
        before = sum(rdy.values())
        commands = plan(peers, max_in_flight=limit, mode=mode)
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
        assert plan(peers, max_in_flight=limit, mode=mode, rng=rng) == {}


def test_running_shares_all_slots_evenly_among_peers_that_keep_up(rng: Random) -> None:
    for _ in range(500):
        peers, limit = any_peers(rng), any_limit(rng)
        for peer in peers:
            peer.in_flight, peer.fresh = 0, False
        settle_down(peers, limit)
        takers = [peer for peer in peers if not peer.closing and peer.max_rdy]
        assert sum(peer.rdy for peer in takers) == min(limit, sum(peer.max_rdy for peer in takers))
        uncapped = [peer.rdy for peer in takers if peer.rdy < peer.max_rdy]
        assert max((peer.rdy for peer in takers), default=0) <= min(uncapped, default=5000) + 1


# Sharing, by example.


def test_a_fresh_peer_gets_1_and_others_do_not_get_its_share() -> None:
    peers = [make(0, rdy=100), make(1, fresh=True)]
    assert settle_down(peers, 100) == [50, 1]
    deliver(peers[1])
    assert settle_down(peers, 100) == [50, 50]


# Falling behind.


def test_a_peer_that_exceeds_rdy_rests_until_half_its_share_is_settled() -> None:
    peers = [make(0, rdy=10, in_flight=11, received=11), make(1, rdy=10)]
    assert settle_down(peers, 20) == [0, 10]
    for in_flight in (15, 11, 10, 6):
        peers[0].in_flight = in_flight
        assert settle_down(peers, 20) == [0, 10]
    peers[0].in_flight = 5
    assert settle_down(peers, 20) == [10, 10]
    # The slot of a resting peer goes to one that waits.
    peers = [make(0, rdy=1, in_flight=2, received=2), make(1, served=NOW), make(2, in_flight=1)]
    assert settle_down(peers, 1) == [0, 1, 0]


def test_what_exceeds_the_old_rdy_but_not_the_new_one_is_no_reason_to_rest() -> None:
    peers = [make(0, rdy=2500, in_flight=2500, received=9999), make(1)]
    assert settle_down(peers, 2500) == [1250, 1250]
    deliver(peers[0], count=40)  # on its way when RDY was lowered
    assert settle_down(peers, 2500) == [1250, 1250]
    assert settle_down([make(0, rdy=10, in_flight=11, received=11)], 100) == [100]
    assert settle_down([make(0, rdy=100, in_flight=100, received=5000)], 100) == [100]


# An nsqd that counts RDY down.


@pytest.mark.parametrize(
    ("rdy", "received", "refreshed"),
    [(100, 75, False), (100, 76, True), (1, 0, False), (1, 1, True), (2, 2, True)],
)
def test_an_old_nsqd_gets_rdy_again_below_a_quarter_of_it(
    rdy: int, received: int, refreshed: bool
) -> None:
    peers = [make(0, rdy=rdy, received=received, counts_down=True)]
    assert plan(peers, max_in_flight=rdy) == ({peers[0].address: rdy} if refreshed else {})
    peers[0].counts_down = False
    assert plan(peers, max_in_flight=rdy) == {}
    # One that exceeds RDY is stopped instead.
    over = make(0, rdy=4, in_flight=5, received=4, counts_down=True)
    assert plan([over], max_in_flight=4) == {over.address: 0}


# Bytes and starvation.


@example(limit=30, budget=33, mean=1.1)
@example(limit=200, budget=1000, mean=1e-300)
@given(limit=st.integers(0, 6000), budget=st.integers(1, 1 << 30), mean=st.floats(0, 1 << 31))
def test_bytes_in_flight_stay_within_the_budget(limit: int, budget: int, mean: float) -> None:
    allowed = bytes_limit(limit, budget, mean)
    exact = Fraction(mean)  # 30 * 1.1 is a little more than 33, but not as a float
    assert min(limit, 1) <= allowed <= limit
    assert allowed <= 1 or allowed * exact <= budget
    if allowed < limit and exact <= budget:
        assert (allowed + 1) * exact > budget


@pytest.mark.parametrize(
    ("rdy", "in_flight", "starved"),
    [(100, 84, False), (100, 85, True), (0, 0, False), (0, 1, True)],
)
def test_starvation_is_seen_at_85_percent(rdy: int, in_flight: int, starved: bool) -> None:
    assert is_starved(in_flight, rdy) is starved


# Fewer slots than connections, and whole histories.


def test_holders_are_kept_when_slots_become_scarce_and_the_rest_is_lowered() -> None:
    peers = [make(0, rdy=50, in_flight=40), make(1, rdy=50, last_message=NOW + 1), make(2)]
    assert settle_down(peers, 2, now=NOW + 2) == [1, 1, 0]
    deliver(peers[1], NOW + 3)
    assert settle_down(peers, 1, now=NOW + 4) == [0, 1, 0]


def test_an_idle_holder_gives_its_slot_to_who_waited_longest() -> None:
    peers = [make(0, rdy=1), make(1, served=NOW - 20), make(2, served=NOW - 21)]
    assert plan(peers, max_in_flight=1, now=NOW + IDLE - 0.1) == {}
    assert settle_down(peers, 1, now=NOW + IDLE) == [0, 0, 1]


@settings(max_examples=40)
@given(
    peers=st.integers(2, 9),
    slots=st.integers(1, 8),
    mode=st.sampled_from([Mode.RUNNING, Mode.PROBING]),
    period=st.floats(0.5, 5),
    seed=st.integers(0, 9999),
)
def test_every_connection_is_served_within_the_bound(
    peers: int, slots: int, mode: Mode, period: float, seed: int
) -> None:
    rng = Random(seed)
    slots = 1 if mode is Mode.PROBING else min(slots, peers - 1)
    bound = IDLE + math.ceil((peers - slots) / slots) * (LONG + period)
    everyone = [make(n, fresh=True) for n in range(peers)]
    busy = {peer.address for peer in everyone if rng.random() < 0.5}
    waiting_since = {peer.address: NOW for peer in everyone}
    now = NOW
    while now < NOW + 3 * bound:
        apply(everyone, plan(everyone, max_in_flight=slots, mode=mode, now=now, rng=rng), now)
        assert sum(peer.rdy for peer in everyone) == slots
        for peer in everyone:
            if peer.rdy:
                waiting_since[peer.address] = now
                if peer.address in busy:
                    deliver(peer, now)
                    peer.in_flight = 0
            assert now - waiting_since[peer.address] <= bound
        now += period * rng.uniform(0.1, 1)
