"""``--where`` and ``--set``: programs of jq, run by the package jq, which carries libjq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqtools.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A line of its own ends a comment, and first() makes one answer of however many.
_WHERE = "first(({}\n), null) | if . then true else false end"
_MOST_ERROR = 200


def condition(program: str) -> Callable[[str], bool]:
    """Whether the first value that a program makes of a JSON text is neither false nor null.

    Without any value it is not so. Raises ConfigError for a program that is none; the function
    raises RecordError where the program fails.
    """
    run = _compiled("--where", program, _WHERE)

    def holds(text: str) -> bool:
        values = _values(run, "--where", text)
        if not values:
            raise RecordError("--where: halted without an answer")
        return bool(values[0])

    return holds


def edit(programs: Sequence[str]) -> Callable[[str], bytes | None]:
    """The JSON text that programs make of one, each of what the one before made.

    None where they make nothing. Numbers that they leave alone stay as they are, however big.
    Raises ConfigError for a program that is none; the function raises RecordError where one fails,
    or makes several values.
    """
    for program in programs:
        _compiled("--set", program, "{}\n")
    run = _compiled("--set", " | ".join(f"({program}\n)" for program in programs), "{}| tojson")

    def edited(text: str) -> bytes | None:
        values = _values(run, "--set", text)
        if len(values) > 1:
            raise RecordError(f"--set made {len(values)} values of it")
        return values[0].encode() if values else None

    return edited


def _compiled(flag: str, program: str, frame: str) -> Any:
    try:
        import jq  # type: ignore[import-not-found]
    except ImportError as error:
        raise ConfigError(f"{flag}: needs the package jq: pip install jq") from error
    try:
        jq.compile(program)  # by itself, or it could close the frame's bracket
        return jq.compile(frame.format(program))
    except ValueError as error:
        raise ConfigError(f"{flag} {program!r}: {_reason(error)}") from None


def _values(run: Any, flag: str, text: str) -> list[Any]:
    try:
        values: list[Any] = run.input_text(text).all()
    except ValueError as error:
        raise RecordError(f"{flag}: {_reason(error)}") from error
    return values


def _reason(error: ValueError) -> str:
    """The first of jq's lines, without the picture below it."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line.removeprefix("jq: error: ").rstrip(" :,")[:_MOST_ERROR]
