"""The measurements of a bench, and their output as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqtools.policy.latency import Latency

if TYPE_CHECKING:
    from collections.abc import Mapping

_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9}


class Traffic:
    """Messages in one direction since ``began``; times are by the event loop's clock.

    ``latency`` is a name for the latency in this direction, such as ``publish``.
    """

    def __init__(self, latency: str) -> None:
        self.latency = latency
        self.began = 0.0
        self.messages = 0
        self._bytes = 0
        self._last = 0.0
        self._took = Latency()

    def add(self, messages: int, size: int, now: float, took: float | None = None) -> None:
        """Count messages of ``size`` bytes in total; each took ``took`` seconds."""
        self.messages += messages
        self._bytes += size
        self._last = now
        if took is not None:
            self._took.add(took, messages)

    def facts(self) -> dict[str, Any]:
        """All measurements: seconds, bytes, rates per second, and latencies in seconds.

        Latencies are None if they were not measured.
        """
        seconds = max(0.0, self._last - self.began)
        took = self._took
        latencies = {name: took.percentile(p) for name, p in _PERCENTILES.items()}
        latencies["max"] = took.longest
        return {
            "messages": self.messages,
            "bytes": self._bytes,
            "seconds": round(seconds, 6),
            "messages_per_second": round(self.messages / seconds, 1) if seconds else 0.0,
            "bytes_per_second": round(self._bytes / seconds, 1) if seconds else 0.0,
            **{name: round(each, 7) if took.longest else None for name, each in latencies.items()},
        }

    def line(self, done: str) -> str:
        """The progress so far."""
        rate = self.facts()["messages_per_second"]
        return f"{self.messages:,} {done}, {rate:,.0f}/s"


def text(measured: Mapping[str, Traffic]) -> str:
    """One or two lines for each direction; its key is a participle, such as ``published``."""
    lines = []
    for done, traffic in measured.items():
        facts = traffic.facts()
        lines.append(
            f"{facts['messages']:,} messages {done} in {facts['seconds']:,.2f} s: "
            f"{facts['messages_per_second']:,.0f} messages/s, "
            f"{facts['bytes_per_second'] / 1e6:,.2f} MB/s"
        )
        if facts["max"] is not None:
            took = ", ".join(f"{name} {facts[name] * 1e3:,.2f}" for name in (*_PERCENTILES, "max"))
            lines.append(f"{traffic.latency} latency in ms: {took}")
    return "".join(f"{line}\n" for line in lines)
