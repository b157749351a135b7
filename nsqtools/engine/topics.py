"""Looking for the topics of a pattern."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsqtools.engine.lookup import Silence, ask_lookupds
from nsqtools.errors import UnreachableError
from nsqtools.net.tls import http_context
from nsqtools.policy.topics import Change, MatchingTopics

if TYPE_CHECKING:
    from collections.abc import Sequence
    from re import Pattern

    from nsqtools.config import ConsumerConfig


class TopicFinder:
    """Asks all nsqlookupds for topics, once for each ``look``; times are seconds."""

    def __init__(
        self,
        lookupds: Sequence[str],
        pattern: Pattern[str],
        config: ConsumerConfig,
        *,
        grace: float,
        connect_timeout: float,
        request_timeout: float,
        silence: Silence | None = None,
    ) -> None:
        self._lookupds = lookupds
        self._limits = {
            "connect_timeout": connect_timeout,
            "request_timeout": request_timeout,
            "token": config.auth_secret if config.lookupd_authorization else "",
            "tls": http_context(config),
        }
        self._topics = MatchingTopics(pattern, grace)
        self._silence = silence or Silence()
        self.answered = False
        """Whether there was a first answer."""

    async def look(self) -> Change:
        """One round; the first raises UnreachableError if nobody answers, later ones only warn."""
        try:
            answers = await ask_lookupds(
                self._lookupds, lambda client: client.topics(), **self._limits
            )
        except UnreachableError as error:
            if not self.answered:
                raise
            self._silence.nobody(error)
            # Those who come back may know nothing yet.
            return self._topics.looked((), complete=False, now=asyncio.get_running_loop().time())
        self.answered = True
        self._silence.heard(answers)
        return self._topics.looked(
            (topic for value in answers.values for topic in value),
            complete=not answers.failures,
            now=asyncio.get_running_loop().time(),
        )
