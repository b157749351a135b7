"""Log lines on stderr."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqtools.cli import exits, logs
from nsqtools.cli.exits import one_line
from nsqtools.config import LogOptions
from nsqtools.errors import ConfigError, UnreachableError
from nsqtools.names import Address

log = logging.getLogger("nsqtools.engine.consumer")


def say_everything() -> None:
    log.debug("RDY %d", 5)
    log.info("connected")
    log.warning("slow")
    log.error("lost")


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
    options: LogOptions, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(options)
    say_everything()
    assert capsys.readouterr().err.splitlines() == lines


def test_twice_verbose_adds_time_and_logger_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogOptions(verbose=2))
    say_everything()
    out, err = capsys.readouterr()
    assert out == ""
    first = err.splitlines()[0].split(" ", 2)
    assert (first[0], first[2]) == ("nsqtools:", "debug nsqtools.engine.consumer: RDY 5")
    assert len(first[1]) == len("12:00:00.000")


def test_control_characters_can_neither_drive_a_terminal_nor_forge_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(LogOptions())
    log.warning("body %s", "\x1b]0;owned\x07\nnsqtools: all is well\u202e\x9b")
    assert capsys.readouterr().err == (
        "nsqtools: warning: body \\x1b]0;owned\\x07\\nnsqtools: all is well\\u202e\\x9b\n"
    )


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert (line == text) == text.isprintable()


def crash() -> None:
    try:
        dict[str, int]()["x"]
    except KeyError:
        log.exception("bug")


def test_an_exception_is_named_and_debugging_adds_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(LogOptions())
    try:
        raise UnreachableError("refused", Address("10.0.0.1", 4150))
    except UnreachableError:
        log.exception("giving up")
    crash()
    assert capsys.readouterr().err.splitlines() == [
        "nsqtools: giving up: 10.0.0.1:4150: refused",
        "nsqtools: bug: KeyError: 'x'",
    ]
    monkeypatch.setenv("NSQTOOLS_DEBUG", "1")
    crash()
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["nsqtools: bug: KeyError: 'x'", "Traceback (most recent call last):"]


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogOptions(verbose=1, log_format="json"))
    record = log.makeRecord(log.name, logging.INFO, "", 0, "two\nlines %s", ("\x1b",), None)
    record.created, record.msecs = 1_600_000_000.25, 250.0
    log.handle(record)
    captured = capsys.readouterr().err
    assert captured.isascii()
    assert captured.count("\n") == 1
    assert list(json.loads(captured).items()) == [
        ("time", "2020-09-13T12:26:40.250Z"),
        ("level", "info"),
        ("logger", "nsqtools.engine.consumer"),
        ("message", "two\nlines \x1b"),
    ]


def test_json_carries_extra_fields_of_any_type(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(LogOptions(log_format="json"))
    extra = {"id": b"0a\xff", "attempts": 3, "nsqd": Address("h", 1), "path": Path("x"), "level": 1}
    log.warning("given up", extra=extra)
    (record,) = records(capsys)
    del record["time"], record["logger"], record["message"]
    assert record == {
        "level": "warning",
        "id": "0a\\xff",
        "attempts": 3,
        "nsqd": ["h", 1],
        "path": "x",
    }


def test_other_packages_are_heard_from_warnings_on_and_in_the_same_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(LogOptions(verbose=2))
    logging.getLogger("httpx").info("HTTP Request: GET ...")
    logs.configure(LogOptions())
    try:
        raise ValueError("lost")
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    assert capsys.readouterr().err == (
        "nsqtools: Task exception was never retrieved: ValueError: lost\n"
    )


def test_a_log_call_that_is_itself_wrong_shows_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.group(invoke_without_command=True)
    def wrong() -> None:
        logs.configure(LogOptions())
        log.error("%d", "x")

    assert exits.run(wrong, []) == 0
    assert capsys.readouterr().err == ""


def test_the_last_words_of_a_run_are_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    @click.group(invoke_without_command=True)
    def fails() -> None:
        logs.configure(LogOptions(log_format="json"))
        raise ConfigError("bad")

    assert exits.run(fails, []) == 2
    (record,) = records(capsys)
    assert (record["level"], record["message"]) == ("error", "bad")


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
    port: int, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = UnreachableError("connection refused", Address("127.0.0.1", port))
    logs.configure(LogOptions())
    log.warning("cannot connect: %s", error)
    for said in (capsys.readouterr().err, f"{exits.words(error)}\n"):
        assert said.endswith(f"start one, or give {fix}\n" if fix else f"{port}: {error.text}\n")
