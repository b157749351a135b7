"""Which messages are relayed, what becomes of their bodies, and to which topic they go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqtools.errors import ConfigError, RecordError
from nsqtools.names import check_name
from nsqtools.sinks.objects import is_equal, join, members_of, text_of
from nsqtools.sinks.relay.programs import condition, edit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsqtools.config import RelayOptions


@dataclass(frozen=True, slots=True)
class Filter:
    """What is asked of a body, in this order, and done to it.

    ``require_field``: a member of the object, which with ``require_value`` has that value; of
    repeated members the last one counts. ``where``: a condition on the JSON text. ``whitelist``:
    the members that are kept, if any is named. ``edit``: the JSON text that is sent instead.
    """

    require_field: str = ""
    require_value: str = ""
    whitelist: frozenset[str] = frozenset()
    where: Callable[[str], bool] | None = None
    edit: Callable[[str], bytes | None] | None = None

    @property
    def passes_all(self) -> bool:
        """Whether every body goes as it is."""
        return not (self.require_field or self.whitelist or self.where or self.edit)

    def apply_all(self, bodies: Sequence[bytes]) -> list[bytes | RecordError | None]:
        """As ``apply`` of each, with the error of a body that raises one; for a thread."""
        found: list[bytes | RecordError | None] = []
        for body in bodies:
            try:
                found.append(self.apply(body))
            except RecordError as error:
                found.append(error.bare())
        return found

    def apply(self, body: bytes) -> bytes | None:
        """The body to publish, or None for a message that is filtered out.

        A body from which nothing is taken stays as it is, byte by byte. Raises RecordError, which
        says what is wrong with the body.
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
    """The filter of these options; raises ConfigError, also where the package jq is missing."""
    return Filter(
        options.require_json_field,
        options.require_json_value,
        frozenset(options.whitelist_json_field),
        condition(options.where) if options.where else None,
        edit(options.set) if options.set else None,
    )


def destinations(
    topics: Iterable[str], *, destination: str = "", maps: Sequence[str] = ()
) -> dict[str, str]:
    r"""Where topics go: to ``destination``, by the first map that matches, or to their own names.

    A map is ``REGEX=TEMPLATE``, which has \1 and \g<name>; the regular expression matches the whole
    name. Raises ConfigError for a map that is none, or makes a name that nsqd does not take.
    """
    patterns = [_map(text) for text in maps]
    return {topic: destination or _mapped(topic, patterns) for topic in topics}


def _map(text: str) -> tuple[str, re.Pattern[str], str]:
    regex, equals, template = text.rpartition("=")  # there is no = in the name of a topic
    if not (equals and regex and template):
        raise ConfigError(f"--map {text!r}: expected REGEX=TEMPLATE, as in '(.*)=copy.\\1'")
    try:
        return text, re.compile(regex), template
    except re.error as error:
        raise ConfigError(f"--map {text!r}: not a regular expression: {error}") from None


def _mapped(topic: str, patterns: Sequence[tuple[str, re.Pattern[str], str]]) -> str:
    for text, pattern, template in patterns:
        if match := pattern.fullmatch(topic):
            try:
                return check_name("topic", match.expand(template))
            except (re.error, IndexError) as error:
                raise ConfigError(f"--map {text!r}: {error}") from None
            except ConfigError as error:
                raise ConfigError(f"--map {text!r}: of {topic} it makes the {error}") from None
    return topic


def find_loops(routes: Mapping[str, str]) -> dict[str, str]:
    """The topics that at last come back to themselves, each with the topic it goes to.

    ``routes`` has the topic that each topic that is read is written to.
    """
    return {topic: goal for topic, goal in routes.items() if _comes_back(topic, routes)}


def _comes_back(topic: str, routes: Mapping[str, str]) -> bool:
    following = topic
    for _ in routes:
        following = routes.get(following, "")
        if following == topic:
            return True
    return False
