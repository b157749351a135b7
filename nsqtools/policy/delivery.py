"""What a message's attempts decide (building_client_libraries, Message Handling)."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Delivered(Protocol):
    """What is looked at of a message."""

    @property
    def attempts(self) -> int:
        """Deliveries so far, this one included."""


M = TypeVar("M", bound=Delivered)


def requeue_delay(attempts: int, *, default_delay: float, max_delay: float) -> float:
    """Seconds until a requeued message comes again: longer each time (go-nsq conn.go)."""
    return min(default_delay * attempts, max_delay)


def split_given_up(messages: list[M], max_attempts: int) -> tuple[list[M], list[M]]:
    """Messages for the handler, and those delivered more than ``max_attempts`` times.

    0 is no limit. Both parts keep their order; when nothing is over, the first is ``messages``.
    """
    if not max_attempts:
        return messages, []
    given_up = [message for message in messages if message.attempts > max_attempts]
    if not given_up:
        return messages, given_up
    return [message for message in messages if message.attempts <= max_attempts], given_up
