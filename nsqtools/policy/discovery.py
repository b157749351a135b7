"""When nsqlookupd is asked, and when an nsqd is dialled again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from nsqtools.names import Address


class LookupSchedule:
    """Times of the rounds after the first one, which is made at once.

    Rounds are ``interval`` seconds apart, plus a random part of up to ``jitter`` times that
    (building_client_libraries, Configuration), so that consumers started together do not ask
    together. Urgency, that is a lost connection or none at all, starts a quick series 1, 2, 4,
    8 ... s apart with the same jitter, for as long as that is less than ``interval``: a restarted
    nsqd or a topic just created is found within seconds. A series runs to its end, since what
    it looks for need not be back when the first round is made. Urgency during a series starts no
    other, nor does being without a connection after its end: an nsqd that drops us each time, or
    never comes, costs few rounds.
    """

    def __init__(self, interval: float, jitter: float) -> None:
        self._interval = interval
        self._jitter = jitter
        self._when = float("-inf")
        self._urgent = False
        self._step: int | None = None

    def next(self, now: float, *, urgent: bool, rng: Random) -> float:
        """When the next round is due. Call it after each round, and when a connection is lost.

        Called before that time has come, it never answers with a later one.
        """
        early = now < self._when
        if self._step is None and urgent and (early or not self._urgent):
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
    """Delays before a fixed address is dialled again: 8, 16, 32 ... s up to ``maximum``.

    ``first`` is the first of them (building_client_libraries, Reconnection); a first delay of 0
    is followed by 1, 2, 4 ... s.
    """

    def __init__(self, first: float, maximum: float) -> None:
        self._first = first
        self._maximum = maximum
        self._delays: dict[Address, float] = {}

    def failed(self, address: Address, now: float) -> float:
        """When to dial, after the connection was lost or could not be made."""
        previous = self._delays.get(address)
        following = self._first if previous is None else previous * 2 or 1.0
        delay = self._delays[address] = min(following, self._maximum)
        return now + delay

    def connected(self, address: Address) -> None:
        """Start from the first delay when this address fails again."""
        self._delays.pop(address, None)
