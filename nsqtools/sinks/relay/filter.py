"""Filters and edits of relayed messages, and their destination topics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError, RecordError
from nsqtools.names import check_name
from nsqtools.records.bodies.decoders import make_decoder
from nsqtools.records.bodies.expressions import Condition, edit
from nsqtools.records.bodies.objects import is_equal, join, members_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsqtools.config.relay import RelayOptions
    from nsqtools.records.bodies.bodydecoder import BodyDecoder


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions on a body and the changes to it, in this order.

    ``require_field`` names a member that the object must have, with the value ``require_value`` if
    that is given; of repeated members the last one counts. ``where`` is a condition on the JSON
    text. ``whitelist`` names the members to keep; empty keeps all. ``edit`` returns the JSON text
    to send instead. With a ``decoder`` all of them are given the decoded body: what the changes
    return is JSON, and without changes the body stays as it was. A body that does not decode is
    given as it is.
    """

    require_field: str = ""
    require_value: str = ""
    whitelist: frozenset[str] = frozenset()
    where: Callable[[str], bool] | None = None
    edit: Callable[[str], bytes | None] | None = None
    decoder: BodyDecoder | None = None

    @property
    def passes_all(self) -> bool:
        """Whether every body is relayed unchanged."""
        return not (self.require_field or self.whitelist or self.where or self.edit)

    def apply_all(self, bodies: Sequence[bytes]) -> list[bytes | RecordError | None]:
        """Apply the filter to each body; a RecordError replaces the result. For a thread.

        Raises NSQError if nothing can be decoded any more.
        """
        found: list[bytes | RecordError | None] = []
        texts = self.decoder.decode_all(bodies) if self.decoder else bodies
        changes = bool(self.whitelist or self.edit)
        for body, text in zip(bodies, texts, strict=True):
            try:
                result = self.apply(body if text is None else text)
            except RecordError as error:
                found.append(error.bare())
            else:
                found.append(result if changes or result is None else body)
        return found

    def apply(self, body: bytes) -> bytes | None:
        """Return the body to publish, or None if the message is filtered out.

        ``body`` is already decoded. It is returned itself if nothing is removed from it. Raises
        RecordError if the body cannot be processed.
        """
        members = members_of(body) if self.require_field or self.whitelist else None
        text = text_of(body) if self.where or self.edit else ""
        if self.require_field:
            values = [each.raw for each in members or () if each.key == self.require_field]
            if not values or (self.require_value and not is_equal(values[-1], self.require_value)):
                return None
        if self.where and not self.where(text):
            return None
        if members and self.whitelist:
            kept = [each for each in members if each.key in self.whitelist]
            if len(kept) < len(members):
                body = join(kept)
        return self.edit(body.decode()) if self.edit else body


def make_filter(options: RelayOptions) -> Filter:
    """Return the filter of these options; raises ConfigError, also if the package jq is missing."""
    return Filter(
        options.require_json_field,
        options.require_json_value,
        frozenset(options.whitelist_json_field),
        Condition(options.where).holds if options.where else None,
        edit(options.set) if options.set else None,
        make_decoder(options.decode),
    )


def destinations(
    topics: Iterable[str], *, destination: str = "", maps: Sequence[str] = ()
) -> dict[str, str]:
    r"""Return the destination of each topic: ``destination``, the first matching map, or its own
    name.

    A map is ``REGEX=TEMPLATE``. The regular expression matches the whole name, and the template may
    contain \1 and \g<name>. Raises ConfigError for an invalid map or a resulting name that nsqd
    refuses.
    """
    patterns = [_map(text) for text in maps]
    return {topic: destination or _mapped(topic, patterns) for topic in topics}


def _map(text: str) -> tuple[str, re.Pattern[str], str]:
    regex, equals, template = text.rpartition("=")  # names of topics never contain =
    if not (equals and regex and template):
        raise ConfigError(f"--map {text!r}: expected REGEX=TEMPLATE, as in '(.*)=copy.\\1'")
    try:
        return text, re.compile(regex), template
    except re.error as error:
        raise ConfigError(f"--map {text!r}: not a valid regular expression: {error}") from None


def _mapped(topic: str, patterns: Sequence[tuple[str, re.Pattern[str], str]]) -> str:
    for text, pattern, template in patterns:
        if match := pattern.fullmatch(topic):
            try:
                return check_name("topic", match.expand(template))
            except (re.error, IndexError) as error:
                raise ConfigError(f"--map {text!r}: {error}") from None
            except ConfigError as error:
                raise ConfigError(
                    f"--map {text!r}: the result for {topic} is not usable: {error}"
                ) from None
    return topic


def find_loops(routes: Mapping[str, str]) -> dict[str, str]:
    """Return the topics that are finally relayed to themselves, each with its destination.

    ``routes`` has the destination of each topic.
    """
    return {topic: goal for topic, goal in routes.items() if _comes_back(topic, routes)}


def _comes_back(topic: str, routes: Mapping[str, str]) -> bool:
    following = topic
    for _ in routes:
        following = routes.get(following, "")
        if following == topic:
            return True
    return False
