"""Log lines on stderr."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.cli import exits, logs
from nsqtools.cli.exits import one_line
from nsqtools.config.program import LogOptions
from nsqtools.errors import UnreachableError
from nsqtools.names import Address

Said = Callable[[], list[str]]

log = logging.getLogger("nsqtools.engine.consumer")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """The lines on stderr since it was last asked; there is nothing on stdout."""

    def call() -> list[str]:
        out, err = capsys.readouterr()
        assert out == ""
        return str(err).splitlines()

    return call


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (LogOptions(quiet=True), ["nsqtools: lost"]),
        (LogOptions(), ["nsqtools: warning: slow", "nsqtools: lost"]),
        (
            LogOptions(verbose=1),
            ["nsqtools: info: connected", "nsqtools: warning: slow", "nsqtools: error: lost"],
        ),
    ],
)
def test_text_says_as_much_as_was_asked_for(
    options: LogOptions, lines: list[str], said: Said
) -> None:
    logs.configure(options)
    log.debug("RDY %d", 5)
    log.info("connected")
    log.warning("slow")
    log.error("lost")
    assert said() == lines


def test_twice_verbose_adds_time_and_logger(said: Said) -> None:
    logs.configure(LogOptions(verbose=2))
    log.debug("RDY %d", 5)
    program, time, rest = said()[0].split(" ", 2)
    assert (program, rest) == ("nsqtools:", "debug nsqtools.engine.consumer: RDY 5")
    assert len(time) == len("12:00:00.000")


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert (line == text) == text.isprintable()


def crash(error: Exception, logger: logging.Logger = log) -> None:
    try:
        raise error
    except type(error):
        logger.exception("bug %s", "\x1b]0;owned\x07\n")


def test_an_exception_is_named_in_one_line_and_debugging_adds_the_traceback(
    monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    logs.configure(LogOptions())
    crash(UnreachableError("refused", Address("10.0.0.1", 4150)))
    crash(KeyError("x"))
    crash(ValueError("lost"), logging.getLogger("asyncio"))
    bug = r"nsqtools: bug \x1b]0;owned\x07\n: "
    assert said() == [
        f"{bug}10.0.0.1:4150: refused",
        f"{bug}KeyError: 'x'",
        f"{bug}ValueError: lost",
    ]
    monkeypatch.setenv("NSQTOOLS_DEBUG", "1")
    crash(KeyError("x"))
    assert said()[:2] == [f"{bug}KeyError: 'x'", "Traceback (most recent call last):"]


def test_json_is_one_object_a_line_with_extra_fields_of_any_type(said: Said) -> None:
    logs.configure(LogOptions(verbose=1, log_format="json"))
    record = log.makeRecord(log.name, logging.INFO, "", 0, "two\nlines %s", ("\x1b",), None)
    record.created, record.msecs = 1_600_000_000.25, 250.0
    log.handle(record)
    extra = {"id": b"0a\xff", "attempts": 3, "nsqd": Address("h", 1), "path": Path("x"), "level": 1}
    log.warning("given up", extra=extra)
    first, second = said()
    assert first.isascii()
    assert list(json.loads(first).items()) == [
        ("time", "2020-09-13T12:26:40.250Z"),
        ("level", "info"),
        ("logger", "nsqtools.engine.consumer"),
        ("message", "two\nlines \x1b"),
    ]
    extra |= {"id": "0a\\xff", "nsqd": ["h", 1], "path": "x", "level": "warning"}
    shared = {name: json.loads(second).pop(name) for name in ("time", "logger", "message")}
    assert json.loads(second) == shared | extra


def test_other_packages_are_heard_from_warnings_on(said: Said) -> None:
    logs.configure(LogOptions(verbose=2))
    logging.getLogger("httpx").info("HTTP Request: GET ...")
    assert said() == []


def test_a_log_call_that_is_itself_wrong_shows_nothing(said: Said) -> None:
    @click.group(invoke_without_command=True)
    def wrong() -> None:
        logs.configure(LogOptions())
        log.error("%d", "x")

    assert exits.run(wrong, []) == 0
    assert said() == []


@pytest.mark.parametrize(
    ("port", "fix"),
    [
        (4150, "--nsqd-tcp-address or --lookupd-http-address"),
        (4151, "--nsqd-http-address or --lookupd-http-address"),
        (4161, "--lookupd-http-address"),
        (4159, ""),
    ],
)
def test_a_server_that_does_not_run_at_its_default_address_leads_to_the_fix(
    port: int, fix: str, said: Said
) -> None:
    error = UnreachableError("connection refused", Address("127.0.0.1", port))
    logs.configure(LogOptions())
    log.warning("cannot connect: %s", error)
    for told in (*said(), exits.error_line(error)):
        assert told.endswith(f"start one, or give {fix}" if fix else f"{port}: {error.text}")
