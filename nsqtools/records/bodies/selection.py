"""``--decode`` and ``--where`` together: messages as they are shown, and which of them are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.proto.messages import Message
from nsqtools.records.bodies.decoders import make_decoder
from nsqtools.records.bodies.expressions import Condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_PORTION, _MAX_PORTION_BYTES = 500, 1 << 20


class Selection:
    """Chooses messages by ``where``, and replaces their bodies by the JSON of ``decode``.

    Both are values of options, and may be empty. A body that does not decode stays as it is. A
    message is not chosen if its body is not JSON, or if the expression fails. ``close`` must be
    called at the end. Raises ConfigError.
    """

    def __init__(self, decode: str, where: str) -> None:
        self._condition = Condition(where) if where else None
        self._decoder = make_decoder(decode)

    @property
    def failed(self) -> int:
        """The number of messages that were not chosen for one of these reasons."""
        return self._condition.failed if self._condition else 0

    @property
    def undecoded(self) -> int:
        """The number of messages so far that did not decode."""
        return self._decoder.undecoded if self._decoder else 0

    def apply(self, messages: Sequence[Message], most: int = 0) -> list[Message | None]:
        """Return each message as it is shown, or None if it is not chosen.

        The list ends with the last of ``most`` chosen messages; 0 is no limit. May block; call it
        in one thread at a time. Raises NSQError if nothing can be decoded any more.
        """
        if not self._decoder:
            return self._chosen(messages, most)
        texts = self._decoder.decode_all([message.body for message in messages])
        decoded = [
            message if text is None else _with_body(message, text)
            for message, text in zip(messages, texts, strict=True)
        ]
        found = self._chosen(decoded, most)
        self._decoder.undecoded -= texts[len(found) :].count(None)  # others will decode these
        return found

    def _chosen(self, messages: Sequence[Message], most: int) -> list[Message | None]:
        if not self._condition:
            return list(messages)
        found: list[Message | None] = []
        chosen = 0
        for message in messages:
            is_chosen = self._condition.chooses(message.body)
            found.append(message if is_chosen else None)
            chosen += is_chosen
            if is_chosen and chosen == most:
                break
        return found

    def shown(self, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
        """Yield the chosen messages as they are shown, in portions; raises as ``apply`` does."""
        for portion in portions(messages):
            yield [each for each in self.apply(portion) if each]

    def close(self) -> None:
        """Release everything, and log what did not decode or failed."""
        if self._decoder:
            self._decoder.close()
        if self._condition:
            self._condition.log_failures()


def portions(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield messages in groups of bounded size, so that their JSON texts have one, too."""
    start = size = 0
    for position, message in enumerate(messages):
        if position - start >= _MAX_PORTION or (size > _MAX_PORTION_BYTES):
            yield messages[start:position]
            start, size = position, 0
        size += len(message.body)
    if start < len(messages):
        yield messages[start:]


def _with_body(message: Message, body: bytes) -> Message:
    return Message(message.id, body, message.timestamp, message.attempts)
