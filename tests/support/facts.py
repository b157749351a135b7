"""Facts for the RDY planner. `apply` does to them what sending a plan does."""

from __future__ import annotations

import math
from random import Random

from hypothesis import strategies as st

from nsqtools.names import Address
from nsqtools.policy.rdy import Mode, Peer, RdyPlanner

IDLE, LONG = 10.0, 30.0
NOW = 1000.0
planner = RdyPlanner(IDLE, LONG)


def make(number: int, **facts: object) -> Peer:
    facts = {"fresh": False, "last_message": NOW, "rdy_since": NOW} | facts
    return Peer(Address("nsqd", 4150 + number), **facts)  # type: ignore[arg-type]


def plan(
    peers: list[Peer],
    max_in_flight: int,
    mode: Mode = Mode.RUNNING,
    now: float = NOW,
    rng: Random | None = None,
) -> dict[Address, int]:
    rng = rng or Random(1)
    return planner.plan(peers, max_in_flight=max_in_flight, mode=mode, now=now, rng=rng)


def apply(peers: list[Peer], commands: dict[Address, int], now: float = NOW) -> None:
    for peer in peers:
        if peer.address in commands:
            count = commands[peer.address]
            if peer.rdy:
                peer.served = now
            if count != peer.rdy:
                peer.rdy_since = now
            peer.rdy, peer.received = count, 0


def settle_down(
    peers: list[Peer], max_in_flight: int, mode: Mode = Mode.RUNNING, now: float = NOW
) -> list[int]:
    """Plan, send, and return everyone's RDY."""
    apply(peers, plan(peers, max_in_flight, mode, now), now)
    return [peer.rdy for peer in peers]


def deliver(peer: Peer, now: float = NOW, count: int = 1) -> None:
    peer.in_flight += count
    peer.received += count
    peer.last_message = now
    peer.fresh = False


moments = st.floats(0, NOW)
counts = st.sampled_from([0, 0, 0, 1]) | st.integers(0, 12) | st.integers(0, 3000)


@st.composite
def any_peers(draw: st.DrawFn) -> list[Peer]:
    """Peers with arbitrary facts, even such as no history leads to."""
    return [
        Peer(
            Address("nsqd", number),
            rdy=draw(counts),
            max_rdy=draw(st.sampled_from([0, 1, 2, 5, 100, 2500])),
            in_flight=draw(counts),
            received=draw(counts),
            counts_down=draw(st.booleans()),
            fresh=draw(st.booleans()),
            last_message=draw(moments),
            rdy_since=draw(moments),
            served=draw(moments | st.just(-math.inf)),
            closing=draw(st.sampled_from([False, False, False, True])),
        )
        for number in range(draw(st.integers(0, 8)))
    ]


any_limit = st.integers(0, 12) | st.integers(0, 6000)
any_mode = st.sampled_from(Mode)
