"""RDY with fewer slots than connections, and over whole histories."""

from __future__ import annotations

import math
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from nsqtools.policy.rdy import Mode, Peer
from tests.support.facts import IDLE, LONG, NOW, any_mode, apply, deliver, make, plan, settle_down


def test_holders_are_kept_when_slots_become_scarce_and_the_rest_is_lowered() -> None:
    peers = [make(0, rdy=50, in_flight=40), make(1, rdy=50, last_message=NOW + 1), make(2)]
    assert settle_down(peers, 2, now=NOW + 2) == [1, 1, 0]
    deliver(peers[1], NOW + 3)
    assert settle_down(peers, 1, now=NOW + 4) == [0, 1, 0]


def test_an_idle_holder_gives_its_slot_to_who_waited_longest() -> None:
    peers = [make(0, rdy=1), make(1, served=NOW - 20), make(2, served=NOW - 21)]
    assert plan(peers, 1, now=NOW + IDLE - 0.1) == {}
    assert settle_down(peers, 1, now=NOW + IDLE) == [0, 0, 1]


def test_a_busy_holder_gives_its_slot_up_later() -> None:
    peers = [make(0, rdy=1), make(1)]
    peers[0].last_message = NOW + LONG
    assert plan(peers, 1, now=NOW + LONG - 0.1) == {}
    assert settle_down(peers, 1, now=NOW + LONG) == [0, 1]


def test_of_two_expired_holders_the_idle_one_gives_up_first() -> None:
    for number, expected in ((0, [1, 0, 1]), (1, [0, 1, 1])):
        peers = [make(0, rdy=1), make(1, rdy=1), make(2)]
        peers[number].last_message = NOW + LONG
        assert settle_down(peers, 2, now=NOW + LONG) == expected


def test_a_holder_keeps_its_slot_when_nobody_can_take_it() -> None:
    peers = [make(0, rdy=1), make(1, in_flight=1), make(2, closing=True)]
    assert plan(peers, 1, now=NOW + 10 * LONG) == {}


def test_who_was_just_emptied_takes_no_slot_from_another_holder() -> None:
    peers = [make(0, rdy=1), make(1, rdy=1), make(2)]
    later = NOW + LONG
    assert sum(settle_down(peers, 2, now=later)) == 2
    assert peers[2].rdy == 1
    assert plan(peers, 2, now=later + IDLE - 0.1) == {}
    assert plan(peers, 2, now=later + IDLE) != {}


def test_equal_waiters_are_picked_at_random() -> None:
    picked = {next(iter(plan([make(n) for n in range(5)], 1, rng=Random(n)))) for n in range(60)}
    assert len(picked) == 5


def test_the_probe_goes_first_to_a_connection_with_nothing_in_flight() -> None:
    peers = [make(0, in_flight=3), make(1, served=NOW), make(2, in_flight=1)]
    assert settle_down(peers, 100, Mode.PROBING) == [0, 1, 0]


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
        apply(everyone, plan(everyone, slots, mode, now, rng), now)
        assert sum(peer.rdy for peer in everyone) == slots
        for peer in everyone:
            if peer.rdy:
                waiting_since[peer.address] = now
                if peer.address in busy:
                    deliver(peer, now)
                    peer.in_flight = 0
            assert now - waiting_since[peer.address] <= bound
        now += period * rng.uniform(0.1, 1)


@given(st.data())
def test_no_history_leaves_slots_unused_for_good(data: st.DataObject) -> None:
    peers: list[Peer] = []
    now, limit, mode, made = NOW, 5, Mode.RUNNING, 0
    rng = Random(data.draw(st.integers(0, 99)))
    steps = ["join", "lose", "mode", "limit", "time", "deliver", "deliver", "settle", "close"]
    for step in data.draw(st.lists(st.sampled_from(steps), max_size=40)):
        if step == "join":
            old = data.draw(st.booleans())
            peers.append(make(made, fresh=True, last_message=now, rdy_since=now, counts_down=old))
            made += 1
        elif step == "mode":
            mode = data.draw(any_mode)
        elif step == "limit":
            limit = data.draw(st.integers(0, 20))
        elif step == "time":
            now += data.draw(st.sampled_from([0.1, 5.0, 31.0]))
        elif peers:
            peer = data.draw(st.sampled_from(peers))
            if step == "lose":
                peers.remove(peer)
            elif step == "close":
                peer.closing = True
            elif step == "settle":
                peer.in_flight = 0
            elif peer.rdy and not peer.closing:
                deliver(peer, now, data.draw(st.integers(1, 2 * peer.rdy)))
        apply(peers, plan(peers, limit, mode, now, rng), now)
        live = [peer.rdy for peer in peers if not peer.closing]
        assert sum(live) <= limit
        if mode is Mode.PROBING and live and limit:
            assert sum(live) == 1
    for peer in peers:
        peer.in_flight, peer.fresh = 0, False
    settle_down(peers, limit, now=now)
    live = [peer.rdy for peer in peers if not peer.closing]
    assert sum(live) == (limit if live else 0)
