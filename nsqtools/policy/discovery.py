"""When to ask nsqlookupds, and when to reconnect to an nsqd."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from nsqtools.names import Address


_SHORT = 1.0


class LookupSchedule:
    """Schedules the lookup rounds; the first round, made at once, is the caller's.

    The time between rounds is ``interval`` seconds, plus a random part of up to ``jitter`` times
    ``interval``: consumers started together should not ask together (building_client_libraries,
    Configuration).

    A lost or missing connection is urgent: it starts a series of rounds 1, 2, 4, 8 ... s apart,
    with the same jitter, while this is less than ``interval``. So the consumer finds a restarted
    nsqd or a new topic within seconds. A series always runs to its end, because the nsqd may return
    after the first round. Urgency during a series, or a connection still missing after it, starts
    no second series: an nsqd dropping each connection, or never returning, costs few rounds.
    ``restart`` always begins a series: use it after the loss of a working connection.
    """

    def __init__(self, interval: float, jitter: float) -> None:
        self._interval = interval
        self._jitter = jitter
        self._when = float("-inf")
        self._urgent = False
        self._step: int | None = None

    def next(self, now: float, *, urgent: bool, rng: Random, restart: bool = False) -> float:
        """Return when the next round is due, in seconds of ``now``'s clock.

        Call it after each round and when a connection is lost. A call before the next round never
        delays the round.
        """
        early = now < self._when
        if restart or (self._step is None and urgent and (early or not self._urgent)):
            self._step = 0
        elif early:
            return self._when
        self._urgent = urgent
        spread = 1 + self._jitter * rng.random()
        delay = self._interval * spread
        if self._step is not None:
            quick = 2**self._step * spread
            if quick < self._interval:
                delay = quick
                self._step += 1
            else:
                self._step = None
        self._when = min(self._when, now + delay) if early else now + delay
        return self._when


class ReconnectDelays:
    """Delays before reconnecting to a fixed address: 1, 2, 4, 8 ... s, up to ``maximum``.

    ``first`` is the first delay in seconds (building_client_libraries, Reconnection); after a first
    delay of 0 the next delays are 1, 2, 4 ... s. With an ``rng`` each delay is shortened at random
    by up to half: consumers of a lost nsqd should not reconnect together.
    """

    def __init__(self, first: float, maximum: float) -> None:
        self._first = first
        self._maximum = maximum
        self._delays: dict[Address, float] = {}

    def failed(self, address: Address, now: float, rng: Random | None = None) -> float:
        """Return when to connect again after a lost or failed connection."""
        previous = self._delays.get(address)
        following = self._first if previous is None else previous * 2 or 1.0
        delay = self._delays[address] = min(following, self._maximum)
        return now + (delay * (1 - rng.random() / 2) if rng else delay)

    def connected(self, address: Address) -> None:
        """Reset the delay of this address."""
        self._delays.pop(address, None)

    def ended(self, address: Address, lasted: float) -> bool:
        """Reset the delay, unless the connection was short: an nsqd dropping each is spared.

        Returns whether the delay was reset.
        """
        if is_long := lasted > max(self._first, _SHORT):
            self.connected(address)
        return is_long
