"""The formats of records: how each is written, read, and counted in archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nsqtools.errors import ConfigError
from nsqtools.records.readers import ENVELOPE, Delimited, JsonLines, LengthPrefixed
from nsqtools.records.writers import DelimitedWriter, JsonWriter, LengthPrefixedWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqtools.records.layout import Layout
    from nsqtools.records.readers import Reader
    from nsqtools.records.writers import Writer

    Observer = Callable[[dict[str, Any]], object] | None


class Form(NamedTuple):
    """A format of records; ``make_writer``, ``make_reader`` and ``make_counter`` describe the
    arguments.
    """

    writer: Callable[[Layout, bool, bool, bool], Writer]
    reader: Callable[[Layout, int, bool, Observer], Reader]
    counter: Callable[[Layout, int, bool], Reader]


FORMS = {
    "raw": Form(
        lambda layout, topic, time, escape: DelimitedWriter(layout.delimiter, topic, time, escape),
        lambda layout, size, complete, _: Delimited(
            layout.delimiter, max_size=size, complete=complete
        ),
        lambda layout, _, is_plain: Delimited(
            layout.delimiter, complete=True, counting=True, fillers=is_plain
        ),
    ),
    "json": Form(
        lambda _layout, _topic, _time, escape: JsonWriter(escape),
        lambda _, size, complete, observe: JsonLines(
            max_size=size, complete=complete, observe=observe
        ),
        # Base64 turns 3 bytes into 4. Text with many escapes may need a higher --max-msg-size.
        lambda _layout, size, _plain: JsonLines(max_line=size * 4 // 3 + ENVELOPE, complete=True),
    ),
    "length-prefixed": Form(
        lambda _layout, _topic, _time, escape: LengthPrefixedWriter(escape),
        lambda _layout, size, complete, _: LengthPrefixed(max_size=size, complete=complete),
        lambda _layout, _size, _plain: LengthPrefixed(complete=True, counting=True),
    ),
}
"""The forms, by their names in ``--format``."""


def make_writer(
    layout: Layout, *, print_topic: bool = False, timestamps: bool = False, escape: bool = False
) -> Writer:
    """Return the writer for a layout; raises ConfigError for an unknown format.

    ``print_topic`` puts ``topic | `` before a raw body as nsq_tail does, ``timestamps`` the time in
    RFC 3339 before both. ``escape`` is for terminals: of the data from nsqd only printable text,
    newline and tab are written raw.
    """
    return _form(layout).writer(layout, print_topic, timestamps, escape)


def make_reader(
    layout: Layout, *, max_size: int = 0, complete: bool = False, observe: Observer = None
) -> Reader:
    """Return a reader for the records of ``make_writer``; raises ConfigError.

    ``observe`` is called with each envelope of ``json``; the other formats have none.
    """
    return _form(layout).reader(layout, max_size, complete, observe)


def make_counter(layout: Layout, max_msg_size: int, *, is_plain: bool) -> Reader:
    """Return a reader to count the records of an archive without holding them.

    ``max_msg_size`` limits the lines of ``json``. ``is_plain`` is true for an uncompressed file,
    which may end in zeros after a power failure. Raises ConfigError.
    """
    return _form(layout).counter(layout, max_msg_size, is_plain)


def _form(layout: Layout) -> Form:
    try:
        return FORMS[layout.format]
    except KeyError:
        known = ", ".join(FORMS)
        raise ConfigError(f"format {layout.format!r} is unknown: use one of {known}") from None
