"""Decides when an nsqd has drained: nobody publishes to it, and it holds no message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqtools.policy.rates import ChannelKey, Counters, CounterSample


class Drain:
    """Follows the counters of one nsqd until it has drained.

    The nsqd has drained once it holds no message, and nobody has published for ``quiet`` seconds.
    The quiet period restarts when the nsqd restarts or does not answer.
    """

    def __init__(self, quiet: float) -> None:
        self._quiet = quiet
        self._at = 0.0
        self._since: float | None = None
        self._published: object = None
        self._served: set[str] = set()
        self.left: Mapping[ChannelKey, Counters] = {}
        """The topics and channels with messages, as of the last sample."""

    def record(self, sample: CounterSample | None) -> None:
        """Take the counters of one poll; None if nsqd did not answer."""
        if sample is None:
            self._since = None
            return
        totals = {key: each.messages for key, each in sample.counters.items() if not key[1]}
        published = sample.start_time, totals
        if self._since is None or published != self._published:
            self._since, self._published = sample.at, published
        self._at = sample.at
        self.left = {key: each for key, each in sample.counters.items() if each.held}
        self._served = {topic for topic, channel in sample.counters if channel}

    @property
    def messages(self) -> int:
        """The number of messages the nsqd holds; a message in two channels counts twice."""
        return sum(each.held for each in self.left.values())

    @property
    def answers(self) -> bool:
        """Whether nsqd answered the last poll."""
        return self._since is not None

    @property
    def is_done(self) -> bool:
        """Whether the nsqd has drained."""
        quiet = self._since is not None and self._at - self._since >= self._quiet
        return quiet and not self.left

    def stuck(self) -> dict[ChannelKey, str]:
        """Return the topics and channels that cannot drain at present, each with the reason."""
        reasons = {key: self._reason(key, each) for key, each in self.left.items()}
        return {key: reason for key, reason in reasons.items() if reason}

    def _reason(self, key: ChannelKey, counters: Counters) -> str:
        topic, channel = key
        if counters.paused:
            return "is paused"
        if channel:
            return "" if counters.clients else "has no consumer"
        return "" if topic in self._served else "has no channel"
