"""The exit codes; turns the outcome of a run into an exit code."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from enum import IntEnum
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROGRAM = "nsqtools"
COMPLETE = "_NSQTOOLS_COMPLETE"
_LEAST_FILES = 32
"""Minimum number of open files: those of an event loop, a few connections, a command's own."""


class Exit(IntEnum):
    """The exit codes, each with its meaning."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """A member with its meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "Everything was done."
    FAILURE = (
        1,
        "Something failed; standard error says what. A consumer also exits with 1 if it could not "
        "handle the last messages of a topic, whatever ended the run.",
    )
    USAGE = 2, "A wrong command line, environment or configuration file; nothing was done."
    UNREACHABLE = (
        3,
        "No server could be reached at the start, or all refused the connection. A continuous "
        "command waits for a server instead.",
    )
    PARTIAL = (
        4,
        "Done, but messages were given up or rejected without a dead letter, or left behind, a "
        "file is bad, some servers failed, or doctor found warnings.",
    )
    LOCKED = 75, "Another process holds the lock; nothing was done."
    INTERRUPTED = 130, "Interrupted by SIGINT."
    PIPE_CLOSED = 141, "The reader of standard output went away (killed by SIGPIPE)."


class Ended(click.exceptions.Exit):
    """Ends the command with an exit code; nothing more is printed."""


def debugging() -> bool:
    """Whether NSQTOOLS_DEBUG asks for tracebacks."""
    return os.environ.get("NSQTOOLS_DEBUG", "") not in ("", "0")


def one_line(text: str) -> str:
    """The text with unprintable characters escaped.

    Text from a server or a message can then neither control the terminal nor forge a second line.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def describe(error: BaseException) -> str:
    """One line about an error, with its type unless the text was written for users."""
    from nsqtools.errors import NSQError

    try:
        text = str(error)
    except Exception:  # the exception keeps its text elsewhere
        text = ""
    if isinstance(error, NSQError) and text:
        return one_line(text)
    name = type(error).__name__
    return one_line(f"{name}: {text}" if text else name)


def _print(text: str) -> None:
    _write(f"{PROGRAM}: {one_line(text)}\n")


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # stderr is closed or full
        pass


_report: Callable[[str], None] = _print


def report_through(report: Callable[[str], None] | None) -> None:
    """Send the final error of a run to ``report`` (a log in JSON), or with None to stderr."""
    global _report
    _report = report or _print


def run(cli: click.Group, args: Sequence[str]) -> int:
    """Run the command line, print its error, if any, and return the exit code.

    Does not return if the reader of stdout has closed it: the process then ends by SIGPIPE. This
    replaces click's ``main`` because it prints a line on Ctrl-C.
    """
    _open_standard_streams()
    try:
        code = _invoke(cli, list(args))
        sys.stdout.flush()
    except SystemExit:
        raise
    except BaseException as error:
        code = _outcome(error)
    _detach_broken_streams()
    if code == Exit.PIPE_CLOSED:
        _die_of_sigpipe()
    return code


def _invoke(cli: click.Group, args: list[str]) -> int:
    instruction = os.environ.get(COMPLETE)
    if instruction:
        from nsqtools.cli.complete import answer

        answer(cli, instruction)
    try:
        with cli.make_context(PROGRAM, args, color=_color()) as ctx:
            _check_open_files()
            cli.invoke(ctx)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return Exit.DONE


def _color() -> bool | None:
    """click's setting for colour; None lets click look for a terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _outcome(error: BaseException) -> int:
    """Report an error; returns its exit code."""
    from nsqtools.errors import ConfigError, LockedError, OutputClosedError, PeerError

    error = cause(error)
    match error:
        case click.UsageError():
            return _usage(error)
        case KeyboardInterrupt() | click.Abort():
            return Exit.INTERRUPTED
        case BrokenPipeError() | OutputClosedError():
            return Exit.PIPE_CLOSED
    if debugging():
        from traceback import format_exception

        _write("".join(format_exception(error)))
    _report(error_line(error))
    match error:
        case ConfigError():
            return Exit.USAGE
        case LockedError():
            return Exit.LOCKED
        case PeerError():  # later errors cause a reconnect, so this happened at the start
            return Exit.UNREACHABLE
    return Exit.FAILURE


def _check_open_files() -> None:
    """Raise OSError if so few files may be open that the event loop breaks in its own ways."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if 0 <= soft < _LEAST_FILES:
        if 0 <= hard < _LEAST_FILES:
            reason = f"at most {hard} files may be open"
            raise OSError(errno.EMFILE, f"{reason}: raise the limit with ulimit -n {_LEAST_FILES}")
        setrlimit(RLIMIT_NOFILE, (_LEAST_FILES, hard))


def cause(error: BaseException) -> BaseException:
    """The error itself, or the first error of a TaskGroup."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_DEFAULT_SERVER = re.compile(
    r"(?:cannot connect: )?(?:nsqd |nsqlookupd )?"
    r"(127\.0\.0\.1:(4150|4151|4161)): connection refused$"
)
_SERVERS = {
    "4150": ("nsqd", "--nsqd-tcp-address or --lookupd-http-address"),
    "4151": ("nsqd", "--nsqd-http-address or --lookupd-http-address"),
    "4161": ("nsqlookupd", "--lookupd-http-address"),
}


def with_fix(text: str) -> str:
    """The text, replaced by a remedy if no server runs at a default address."""
    if not (found := _DEFAULT_SERVER.search(text)):
        return text
    kind, flags = _SERVERS[found[2]]
    fix = f"cannot reach {kind} at {found[1]} (the default): start one, or give {flags}"
    return text[: found.start()] + fix


def error_line(error: BaseException) -> str:
    """The line for the user about the error ending a run."""
    from nsqtools.errors import NSQError, UnreachableError

    match error:
        case UnreachableError():
            return with_fix(describe(error))
        case click.ClickException():
            return error.format_message()
        case NSQError():
            return describe(error)
        case OSError():
            return _os_error(error)
    return (
        f"internal error: {describe(error)}, please report; "
        "run with NSQTOOLS_DEBUG=1 for the traceback"
    )


def _usage(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        from nsqtools.cli.frame import brief

        _write(f"{brief(error.ctx) if error.ctx else error.format_message()}\n")
        return Exit.USAGE
    path = error.ctx.command_path if error.ctx else PROGRAM
    text = error.format_message().replace("\n\t", " ")  # click's text about a missing choice
    _write(f"{path}: {one_line(text)}\nTry '{path} -h'.\n")
    return Exit.USAGE


_OUTPUT_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.ENXIO}
)


def _os_error(error: OSError) -> str:
    text = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {text}"
    # Files have names and sockets raise NSQErrors, so this is standard output.
    return f"standard output: {text}" if error.errno in _OUTPUT_ERRNOS else text


def _open_standard_streams() -> None:
    """Open descriptors 0 to 2 if the caller closed them.

    Otherwise a socket could become descriptor 1, and messages would be written to nsqd. Reading
    from such a standard input fails, and so does writing to such a standard output. Characters
    unknown to the encoding of standard output are escaped, as on standard error.
    """
    for fd, name, flags, mode in (
        (0, "stdin", os.O_WRONLY, "r"),
        (1, "stdout", os.O_RDONLY, "w"),
        (2, "stderr", os.O_WRONLY, "w"),
    ):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free descriptor: fd
            stream = open(fd, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the run
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper):  # tests may replace it
        sys.stdout.reconfigure(errors="backslashreplace")


def _detach_broken_streams() -> None:
    """Discard unwritten output, or else the interpreter prints an error and exits with 120."""
    for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except (OSError, ValueError):
            _discard(fd)


def _discard(fd: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)


def _die_of_sigpipe() -> None:
    import signal

    _discard(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
