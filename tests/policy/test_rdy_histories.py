"""RDY in every history of up to three nsqds and six events."""

import math
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from nsqtools.names import Address
from nsqtools.policy.rdy import Mode, Peer, RdyPlanner
from tests.support.enumerating import reachable

IDLE, LONG = 10.0, 30.0
PLANNER = RdyPlanner(IDLE, LONG)
EVENTS = 6
LIMITS = (0, 1, 2, 5)
CAPS = (1, 2500)


class Nsqd(NamedTuple):
    """A connection; times are seconds ago."""

    rdy: int = 0
    max_rdy: int = 2500
    in_flight: int = 0
    received: int = 0
    fresh: bool = True
    last_message: float = 0.0
    rdy_since: float = 0.0
    served: float = math.inf
    closing: bool = False

    def later(self, seconds: float) -> "Nsqd":
        return self._replace(
            last_message=min(self.last_message + seconds, LONG),
            rdy_since=min(self.rdy_since + seconds, LONG),
            served=self.served if self.served == math.inf else min(self.served + seconds, LONG),
        )

    def peer(self, number: int) -> Peer:
        facts = self._asdict()
        for name in ("last_message", "rdy_since", "served"):
            facts[name] = -facts[name]
        return Peer(Address("nsqd", 4150 + number), **facts)


class State(NamedTuple):
    """What the planner is told."""

    nsqds: tuple[Nsqd, ...]
    limit: int
    mode: Mode = Mode.RUNNING


def planned(state: State) -> State:
    """The state after the plan; all that must hold for every plan is asserted."""
    peers = [nsqd.peer(number) for number, nsqd in enumerate(state.nsqds)]
    commands = PLANNER.plan(peers, max_in_flight=state.limit, mode=state.mode, now=0, rng=Random(1))
    active = [peer for peer in peers if not peer.closing]
    total = sum(peer.rdy for peer in active)
    for address, count in commands.items():
        (peer,) = [peer for peer in active if peer.address == address]
        assert 0 <= count <= peer.max_rdy
        assert count != peer.rdy, "sent for nothing"
        after = total + count - peer.rdy
        assert after <= max(state.limit, total), "more than max_in_flight"
        total = after
        if peer.rdy:
            peer.served = 0.0
        peer.rdy, peer.received, peer.rdy_since = count, 0, 0.0
    assert total <= state.limit
    assert (
        PLANNER.plan(peers, max_in_flight=state.limit, mode=state.mode, now=0, rng=Random(2)) == {}
    ), "a second plan changes something"
    check(state, active, total)
    nsqds = [
        nsqd._replace(
            rdy=peer.rdy, received=peer.received, rdy_since=-peer.rdy_since, served=-peer.served
        )
        for nsqd, peer in zip(state.nsqds, peers, strict=True)
    ]
    return state._replace(nsqds=tuple(sorted(nsqds)))


def check(state: State, active: list[Peer], total: int) -> None:
    """What a mode promises."""
    able = [peer for peer in active if not peer.in_flight]
    if state.mode is Mode.STOPPED or not active or not state.limit:
        assert total == 0
    elif state.mode is Mode.PROBING:
        assert total == 1
    elif state.limit >= len(active):
        assert all(peer.rdy for peer in able), "one that keeps up gets nothing"
        if len(able) == len(active) and not any(peer.fresh for peer in active):
            assert total == min(state.limit, sum(peer.max_rdy for peer in active))
            room = [peer.rdy for peer in active if peer.rdy < peer.max_rdy]
            assert max(peer.rdy for peer in active) <= min(room, default=9999) + 1, "uneven"
    elif len(able) >= state.limit:
        assert total == state.limit, "a slot is not used"


def after(state: State) -> Iterator[State]:
    """Plan after each event that is possible."""
    for number, nsqd in enumerate(state.nsqds):
        rest = state.nsqds[:number] + state.nsqds[number + 1 :]

        def of(changed: Nsqd, rest: tuple[Nsqd, ...] = rest) -> State:
            return planned(state._replace(nsqds=(*rest, changed)))

        if nsqd.in_flight < 3 and not nsqd.closing and (nsqd.rdy or nsqd.in_flight):
            count, received = nsqd.in_flight + 1, nsqd.received + 1
            yield of(
                nsqd._replace(in_flight=count, received=received, last_message=0.0, fresh=False)
            )
        if nsqd.in_flight:
            yield of(nsqd._replace(in_flight=nsqd.in_flight - 1))
        if not nsqd.closing:
            yield of(nsqd._replace(closing=True))
        yield planned(state._replace(nsqds=rest))
    if len(state.nsqds) < 3:
        for cap in CAPS:
            yield planned(state._replace(nsqds=(*state.nsqds, Nsqd(max_rdy=cap))))
    for seconds in (IDLE, LONG):
        yield planned(state._replace(nsqds=tuple(nsqd.later(seconds) for nsqd in state.nsqds)))
    for limit in LIMITS:
        if limit != state.limit:
            yield planned(state._replace(limit=limit))
    for mode in Mode:
        if mode is not state.mode:
            yield planned(state._replace(mode=mode))


def test_every_plan_of_every_history_keeps_its_promises(full: bool) -> None:
    start = [State((), limit) for limit in LIMITS]
    assert sum(1 for _ in reachable(start, after, EVENTS if full else EVENTS - 1)) > 10_000
