"""Limits the number of topics to the file descriptors that the process may open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqtools.config.units import counted
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Spare descriptors for files that are always open, directories, programs and name look-ups.
_SPARE = 24
# One of _SHARE descriptors is for HTTP requests, of at most _AT_ONCE topics per server.
_SHARE, _AT_ONCE = 16, 32


class Descriptors:
    """Reserves file descriptors per topic, so that output files can always be opened.

    ``limit`` is for the whole process. A topic needs ``files`` descriptors, and one for each of its
    nsqds, of which there is at least one. Hold ``requests`` of a server during an HTTP request to
    it; ``servers`` is how many have their own.
    """

    def __init__(self, limit: int, *, files: int, servers: int) -> None:
        self._limit = limit
        self._files = files
        self._nsqds: dict[str, int] = {}
        self._at_once = max(1, min(_AT_ONCE, limit // _SHARE // servers))
        self._requests: dict[str, asyncio.Semaphore] = {}

    def requests(self, server: str) -> asyncio.Semaphore:
        """Limits the requests to one server, so that a server that hangs delays no other's."""
        return self._requests.setdefault(server, asyncio.Semaphore(self._at_once))

    def reserve(self, topic: str, nsqds: int, *, topics: int) -> None:
        """Reserve the descriptors of a topic on ``nsqds`` nsqds; raises ConfigError.

        ``topics`` is the number of all topics, with or without a reservation.
        """
        others = [count for name, count in self._nsqds.items() if name != topic]
        self.check([nsqds, *others], topics=topics)
        self._nsqds[topic] = nsqds

    def release(self, topic: str) -> None:
        """Release the descriptors of a topic."""
        self._nsqds.pop(topic, None)

    def check(self, nsqds: Sequence[int], *, topics: int = 0) -> None:
        """Raise ConfigError if there are too few; ``nsqds`` has the number of each topic."""
        needed = _SPARE + sum(self._files + max(1, count) for count in nsqds)
        if needed > self._limit - self._limit // _SHARE:
            topics = max(topics, len(nsqds))
            needed += (topics - len(nsqds)) * (self._files + 1)
            needed += needed // (_SHARE - 1) + 1
            raise ConfigError(
                f"{counted(topics, 'topic')} would need {needed} open files, but the limit is "
                f"{self._limit}: raise it with ulimit -n {needed}"
            )
