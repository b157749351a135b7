"""Log lines on stderr: text for people, or one JSON object per line for collectors."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from nsqtools.cli.exits import PROGRAM, debugging, describe, one_line, report_through, with_fix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqtools.config.program import LogOptions

_LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}
_GO_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure(options: LogOptions, warnings: Iterable[str] = (), notes: Iterable[str] = ()) -> None:
    """Set up logging for a run: errors with -q, else warnings; information with -v, all with -vv.

    ``warnings`` and ``notes`` are logged first. Warnings of other packages (asyncio, httpx) use the
    same handler, so no traceback bypasses it. If stderr is closed or full, only the log lines are
    lost.
    """
    verbosity = -1 if options.quiet else options.verbose
    level = _LEVELS.get(verbosity, logging.DEBUG)
    as_json = options.log_format == "json"
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter(verbosity))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(level, logging.WARNING))
    logger = logging.getLogger("nsqtools")
    logger.setLevel(level)
    logging.raiseExceptions = debugging()
    report_through(logger.error if as_json else None)
    for text in warnings:
        logger.warning(text)
    for text in notes:
        logger.info(text)


def adjust(level: str, prefix: str) -> None:
    """Apply nsq_to_file's ``--log-level`` and ``--log-prefix``; empty values change nothing."""
    if level:
        logging.getLogger("nsqtools").setLevel(_GO_LEVELS[level])
    for handler in logging.getLogger().handlers:
        if prefix and isinstance(handler.formatter, TextFormatter):
            handler.formatter.prefix = prefix


def show_status(kind: str = "status") -> None:
    """Log the lines of ``--status-every``, or of another ``kind``, except with -q."""
    logger = logging.getLogger(f"nsqtools.{kind}")
    if logger.isEnabledFor(logging.WARNING):
        logger.setLevel(logging.INFO)


def is_watched() -> bool:
    """Whether to show progress: on a terminal, without -q or JSON log lines."""
    handlers = logging.getLogger().handlers
    as_json = any(isinstance(each.formatter, JsonFormatter) for each in handlers)
    is_enabled = logging.getLogger("nsqtools").isEnabledFor(logging.WARNING)
    return sys.stderr.isatty() and is_enabled and not as_json


def report_end(text: str) -> None:
    """Report the outcome of a run: on a terminal except with -q, elsewhere only with -v."""
    if sys.stderr.isatty():
        show_status("end")
    logging.getLogger("nsqtools.end").info(text)


class _Stderr(logging.Handler):
    """Writes to the current ``sys.stderr``."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record) + "\n"
            sys.stderr.write(text)
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """``nsqtools: text``. Warnings are labelled; -v labels all lines, -vv adds time and logger.

    Unprintable characters are escaped: a line stays one line and cannot control a terminal. An
    exception ends the line; its traceback follows only with NSQTOOLS_DEBUG=1.
    """

    def __init__(self, verbosity: int) -> None:
        super().__init__()
        self._verbosity = verbosity
        self.prefix = f"{PROGRAM}: "

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end, or several lines with a traceback."""
        text = with_fix(record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            text += f": {describe(error)}"
        line = f"{self.prefix}{self._label(record)}{one_line(text)}"
        if record.exc_info and debugging():
            line += "\n" + "\n".join(map(one_line, _traceback(self, record).splitlines()))
        return line

    def _label(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        if self._verbosity > 1:
            clock = time.strftime("%H:%M:%S", time.localtime(record.created))
            return f"{clock}.{int(record.msecs):03d} {level} {record.name}: "
        return f"{level}: " if self._verbosity == 1 or record.levelno == logging.WARNING else ""


class JsonFormatter(logging.Formatter):
    """Keys ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, then keys of ``extra``.

    An error adds ``exception`` (one line) and, with NSQTOOLS_DEBUG=1, ``traceback``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line of ASCII without its end."""
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": with_fix(record.getMessage()),
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = describe(record.exc_info[1])
            if debugging():
                fields["traceback"] = _traceback(self, record)
        for name, value in record.__dict__.items():
            if name not in _STANDARD:
                fields.setdefault(name, value)
        return json.dumps(fields, default=_plain)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _plain(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
