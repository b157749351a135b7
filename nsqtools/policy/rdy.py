"""Plans each nsqd's RDY, its maximum in flight (building_client_libraries, RDY State)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from nsqtools.names import Address


class Mode(Enum):
    """How much of ``max_in_flight`` may be used."""

    RUNNING = "running"
    """All of it."""
    PROBING = "probing"
    """RDY 1 on one connection, after a backoff wait."""
    STOPPED = "stopped"
    """RDY 0 everywhere, during a backoff wait or while the handler is behind."""


@dataclass(slots=True)
class Peer:
    """The facts of one connection. Times are seconds of one monotonic clock."""

    address: Address
    rdy: int = 0
    """The value last sent."""
    max_rdy: int = 2500
    """``max_rdy_count`` of this nsqd."""
    in_flight: int = 0
    """Delivered messages not yet settled."""
    received: int = 0
    """Messages received since RDY was last sent."""
    counts_down: bool = False
    """True for nsqd before 0.3: every message lowers its RDY by one, so RDY must be sent again."""
    fresh: bool = True
    """True until the first message."""
    last_message: float = 0.0
    """When the last message came; before the first message, when the connection was made."""
    rdy_since: float = 0.0
    """When RDY last changed; sending the same value again does not count."""
    served: float = float("-inf")
    """When RDY was last above 0, for a peer whose RDY is 0."""
    closing: bool = False
    """True after CLS: nsqd ignores RDY and sends no message."""


class RdyPlanner:
    """Decides the RDY of each peer. It keeps no state: the peers hold all facts.

    If ``max_in_flight`` is at least the number of peers, the slots are shared evenly, within each
    peer's ``max_rdy``; a fresh peer starts with 1. With fewer slots, or while probing, a slot is
    RDY 1 on one peer, and slots rotate. After ``low_rdy_idle_timeout`` without a message, or
    ``low_rdy_timeout`` with its slot, a peer passes the slot to the longest-waiting peer. The heir
    must have waited for ``low_rdy_idle_timeout``: otherwise idle nsqds would swap slots in every
    plan.

    With n peers keeping up, s slots and a plan at least every d seconds, no peer waits longer
    than ``low_rdy_idle_timeout + ceil((n - s) / s) * (low_rdy_timeout + d)``, unless new
    connections come in between. After its first ``low_rdy_idle_timeout`` a waiting peer, and the at
    most n - s peers before it, may take any expired slot. Each slot expires in
    ``low_rdy_timeout`` and is passed on within d; the peer losing a slot queues behind them.

    A peer with more messages in flight than its RDY is a sign of a handler falling behind: nsqd
    times messages out and sends others instead, without end. Such a peer gets RDY 0 until at most
    half its share is in flight. At the full share the next timeout would stop the peer again, and
    RDY would change with every message. Pausing the socket is no alternative, because nsqd closes
    unread connections.
    """

    def __init__(self, low_rdy_idle_timeout: float, low_rdy_timeout: float) -> None:
        self._idle_timeout = low_rdy_idle_timeout
        self._timeout = low_rdy_timeout

    def plan(
        self, peers: Iterable[Peer], *, max_in_flight: int, mode: Mode, now: float, rng: Random
    ) -> dict[Address, int]:
        """Return the RDY commands to send; commands lowering RDY come first.

        After each command, the sum of RDY over all peers not closing is within ``max_in_flight``,
        or falls until it is. An unchanged RDY is sent again only to a peer with ``counts_down``.
        """
        active = [peer for peer in peers if not peer.closing]
        takers = [peer for peer in active if peer.max_rdy > 0]
        targets: dict[Address, int] = {}
        if mode is Mode.RUNNING and max_in_flight >= len(takers):
            targets = _share(takers, max_in_flight)
        elif mode is not Mode.STOPPED and max_in_flight > 0:
            targets = self._rotate(takers, max_in_flight, mode, now, rng)
        lower, higher = {}, {}
        for peer in active:
            target = targets.get(peer.address, 0)
            if target < peer.rdy:
                lower[peer.address] = target
            elif target > peer.rdy or (target and _must_refresh(peer)):
                higher[peer.address] = target
        return lower | higher

    def _rotate(
        self, takers: list[Peer], slots: int, mode: Mode, now: float, rng: Random
    ) -> dict[Address, int]:
        """Choose the peers with RDY 1, if there are more peers than slots, or while probing."""
        able = takers
        if mode is Mode.PROBING:
            # Even a peer falling behind may probe, or backoff would never end; RDY 1 brings it at
            # most one message per msg_timeout.
            slots = 1
        else:
            able = [peer for peer in takers if not _must_rest(peer, 1)]
        holders = sorted((peer for peer in able if peer.rdy), key=_last_sign)
        kept = holders[-slots:]
        waiting = [peer for peer in able if not peer.rdy]
        rng.shuffle(waiting)  # the sort is stable, so ties are served at random
        waiting.sort(key=lambda peer: (peer.in_flight > 0, peer.served))
        free = slots - len(kept)
        chosen, waiting = waiting[:free], waiting[free:]
        heirs = [peer for peer in waiting if now >= peer.served + self._idle_timeout]
        expired = [peer for peer in kept if self._is_expired(peer, now)]
        swaps = min(len(heirs), len(expired))
        replaced = {peer.address for peer in expired[:swaps]}
        chosen += heirs[:swaps]
        chosen += [peer for peer in kept if peer.address not in replaced]
        return {peer.address: 1 for peer in chosen}

    def _is_expired(self, peer: Peer, now: float) -> bool:
        idle = now >= _last_sign(peer) + self._idle_timeout
        return idle or now >= peer.rdy_since + self._timeout


def _last_sign(peer: Peer) -> float:
    return max(peer.last_message, peer.rdy_since)


def _share(takers: Sequence[Peer], slots: int) -> dict[Address, int]:
    """Share slots evenly, at least one per peer; the surplus of capped peers goes to the others."""
    rest = sorted(takers, key=lambda peer: peer.max_rdy)
    bases: dict[Address, int] = {}
    for index, peer in enumerate(rest):
        base = slots // (len(rest) - index)
        if peer.max_rdy > base:
            bases |= {open_peer.address: base for open_peer in rest[index:]}
            slots -= base * (len(rest) - index)
            break
        bases[peer.address] = peer.max_rdy
        slots -= peer.max_rdy
    resting = {peer.address for peer in rest if _must_rest(peer, bases[peer.address])}

    def turn(peer: Peer) -> tuple[bool, bool, bool]:
        # First peers able to use one more slot; among them, the present holders: the slot should
        # not wander.
        return peer.address in resting, peer.fresh, peer.rdy <= bases[peer.address]

    targets = {}
    for peer in sorted(rest, key=turn):
        share = bases[peer.address]
        if slots and peer.max_rdy > share:
            share += 1
            slots -= 1
        if peer.address in resting:
            share = 0
        elif peer.fresh:
            share = min(share, 1)  # the rest of its share stays reserved
        targets[peer.address] = share
    return targets


def _must_rest(peer: Peer, share: int) -> bool:
    """Whether this peer sends more than RDY allows, or still has RDY 0 for this reason.

    More in flight than RDY is not enough: RDY may just have been lowered. But then only messages
    already on their way arrive, until RDY is no longer exceeded.
    """
    if peer.rdy == 0:
        return 2 * peer.in_flight > share
    keeps_coming = peer.received > peer.rdy or _must_refresh(peer)
    return keeps_coming and peer.in_flight > max(peer.rdy, share)


def _must_refresh(peer: Peer) -> bool:
    """Whether less than a quarter of the RDY last sent is left (RDY State, Bootstrap)."""
    return peer.counts_down and 4 * (peer.rdy - peer.received) < peer.rdy


def bytes_limit(max_in_flight: int, budget: int, mean_body: float) -> int:
    """Lower ``max_in_flight`` until as many bodies of ``mean_body`` bytes fit into ``budget``.

    The result is at least 1, so that a body over the budget still passes; 0 stays 0.
    """
    if max_in_flight <= 0 or mean_body <= 0:
        return max_in_flight
    return max(1, int(min(max_in_flight, budget // mean_body)))


class ByteBudget:
    """Limits the bytes in flight, by the mean size of recent bodies.

    ``limit`` is ``max_in_flight`` within the budget.
    """

    def __init__(self, budget: int, max_in_flight: int) -> None:
        self.limit = max_in_flight
        self._budget = budget
        self._max_in_flight = max_in_flight
        self._mean = 0.0

    def note(self, count: int, size: int) -> bool:
        """Note ``count`` messages of ``size`` bytes in total; returns whether the limit changes."""
        weight = count / (count + 256) if self._mean else 1.0
        self._mean += (size / count - self._mean) * weight
        before = self.limit
        self._set_limit()
        return self.limit != before

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Change ``max_in_flight``."""
        self._max_in_flight = max_in_flight
        self._set_limit()

    def _set_limit(self) -> None:
        """Adjust the limit; to keep it steady, ignore less than 20 % down or 25 % up."""
        maximum, last = self._max_in_flight, self.limit
        exact = bytes_limit(maximum, self._budget, self._mean)
        near = 0.8 * last < exact < 1.25 * last
        if exact == maximum or last > maximum or not near:
            self.limit = exact


def is_starved(in_flight: int, rdy: int) -> bool:
    """Whether nsqd is about to stop sending until messages are settled.

    The factor 0.85 anticipates this (building_client_libraries, Message Flow Starvation).
    """
    return in_flight > 0 and in_flight >= rdy * 0.85
