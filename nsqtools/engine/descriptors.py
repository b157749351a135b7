"""How many topics may be consumed with the file descriptors that the process may have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqtools.config.units import counted
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

# For what is open anyway, and for directories, programs and name look-ups now and then.
_SPARE = 24
# This part of all is for requests over HTTP, of so many topics at a time at most.
_SHARE, _AT_ONCE = 16, 32


class Descriptors:
    """Reserves descriptors for topics, so that files to write to can always be opened.

    The process may have ``limit`` of them. A topic takes ``files``, and one for each of its nsqds,
    of which there is at least one. ``requests`` is held during a request over HTTP that is made for
    each topic, to ``servers`` at once.
    """

    def __init__(self, limit: int, *, files: int, servers: int) -> None:
        self._limit = limit
        self._files = files
        self._nsqds: dict[str, int] = {}
        self.requests = asyncio.Semaphore(max(1, min(_AT_ONCE, limit // _SHARE // servers)))

    def reserve(self, topic: str, nsqds: int, *, topics: int) -> None:
        """Reserve what a topic on so many nsqds takes; raises ConfigError.

        ``topics`` is how many there are, also of those that have none reserved.
        """
        others = [count for name, count in self._nsqds.items() if name != topic]
        self.check([nsqds, *others], topics=topics)
        self._nsqds[topic] = nsqds

    def release(self, topic: str) -> None:
        """Let others have what was reserved for a topic."""
        self._nsqds.pop(topic, None)

    def check(self, nsqds: Sequence[int], *, topics: int = 0) -> None:
        """Raise ConfigError if there are too few for topics on so many nsqds each."""
        needed = _SPARE + sum(self._files + max(1, count) for count in nsqds)
        if needed > self._limit - self._limit // _SHARE:
            topics = max(topics, len(nsqds))
            needed += (topics - len(nsqds)) * (self._files + 1)
            needed += needed // (_SHARE - 1) + 1
            raise ConfigError(
                f"{counted(topics, 'topic')} would need {needed} open files, and the limit is "
                f"{self._limit}: raise it with ulimit -n {needed}"
            )
