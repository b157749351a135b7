"""One report of a cluster: rows with rates, consumers, and the errors of silent nsqds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.clock import wall
from nsqtools.engine.clusterstats import ConsumerRates, latencies
from nsqtools.errors import UnreachableError
from nsqtools.policy.rates import Rates, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsqtools.config.stats import StatsOptions
    from nsqtools.engine.cluster import Cluster, Snapshot
    from nsqtools.engine.clusterstats import ConsumerRow, Percentiles
    from nsqtools.policy.rates import ChannelKey, Row


@dataclass(frozen=True, slots=True)
class Report:
    """``at`` is in seconds since the epoch, ``elapsed`` the time since the last report.

    ``consumers`` is None unless requested. ``latencies`` has the highest percentiles of all nsqds,
    by topic and channel, if nsqd measures them.
    """

    at: float
    elapsed: float | None
    rows: Sequence[Row]
    consumers: Sequence[ConsumerRow] | None
    latencies: Mapping[ChannelKey, Percentiles]
    snapshot: Snapshot

    @property
    def silent(self) -> list[str]:
        """The errors of silent nsqds."""
        return [str(error) for error in self.snapshot.silent.values()]


class Reporter:
    """Polls a cluster for reports."""

    def __init__(self, cluster: Cluster, asked: StatsOptions) -> None:
        self._cluster = cluster
        self._asked = asked
        self._rates = Rates()
        self._consumers = ConsumerRates()
        self._before: float | None = None

    async def report(self) -> Report:
        """Poll once. The first call raises UnreachableError if no nsqd answers or is listed."""
        topic, channel = self._asked.topic or None, self._asked.channel or None
        look = self._cluster.poll if self._before is None else self._cluster.look
        at = wall()
        snapshot = await look(topic, channel, include_clients=self._asked.clients)
        if self._before is None and not (snapshot.nodes or any(snapshot.listed.values())):
            fix = "start nsqd with --lookupd-tcp-address"
            raise UnreachableError(f"no nsqlookupd lists an nsqd: {fix}")
        rows = self._rates.record(snapshot.samples(), snapshot.topics())
        elapsed = None if self._before is None else snapshot.at - self._before
        self._before = snapshot.at
        return Report(
            at,
            elapsed,
            shown(rows, self._asked.channel),
            self._consumers.record(snapshot) if self._asked.clients else None,
            latencies(snapshot),
            snapshot,
        )
