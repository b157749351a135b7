"""``stats --watch``: the live view on the alternate screen of the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import termios
import tty
from collections import deque
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live

from nsqtools.cli.commands.stats.stream import Ticker
from nsqtools.cli.commands.stats.view import ViewState
from nsqtools.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsqtools.cli.commands.stats.report import Reporter
    from nsqtools.config.stats import StatsOptions

_MAX_LOGS = 100  # lines kept until the screen is left


async def show(reporter: Reporter, asked: StatsOptions) -> None:
    """Show the view until the user ends it.

    Raises ConfigError without a terminal, UnreachableError if no server answers at the start.
    """
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise ConfigError(
            "--watch needs a terminal with cursor control: use --json or --csv instead"
        )
    view = ViewState(asked.interval)
    view.update(await reporter.report())  # first, so that an error appears on the normal screen
    with Screen(view) as screen:

        async def measure() -> None:
            ticker = Ticker(asked.interval)
            reported = 0
            while not asked.count or reported < asked.count:
                await ticker.turn()
                view.update(await reporter.report())
                screen.draw()
                reported += 1

        measuring = asyncio.ensure_future(measure())
        try:
            await asyncio.wait((measuring, screen.ended), return_when=asyncio.FIRST_COMPLETED)
            for each in (measuring, screen.ended):
                if each.done():
                    each.result()
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)  # it uses the cluster


class Screen:
    """Draws a view on the alternate screen and gives it keys; create it inside the running loop.

    A context manager: on exit the screen, the cursor and the terminal's modes are restored, and
    lines logged meanwhile are printed. Ctrl-Z leaves the screen too, until ``fg``. ``ended`` is
    done when the user has ended the view, or when it has failed.
    """

    def __init__(self, view: ViewState) -> None:
        self._view = view
        self._loop = asyncio.get_running_loop()
        self._stack = contextlib.ExitStack()
        self._live: Live | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def __enter__(self) -> Self:
        # Before anything is drawn: otherwise Ctrl-Z would leave the shell in the alternate
        # screen.
        self._on_signal(signal.SIGWINCH, self.draw)
        self._on_signal(signal.SIGTSTP, self._suspend)
        if sys.stdin.isatty():
            self._loop.add_reader(sys.stdin.fileno(), self._guarded(self._read))
        try:
            self._enter()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            self._loop.remove_signal_handler(number)
        if sys.stdin.isatty():
            self._loop.remove_reader(sys.stdin.fileno())
        self._stack.close()

    def draw(self) -> None:
        """Draw all lines in one write, without clearing the screen first, so nothing flickers."""
        if self._live:
            self._live.update(self._view.draw(*self._live.console.size), refresh=True)

    def _enter(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_logs_held())
            stack.enter_context(_keys_at_once())
            self._live = stack.enter_context(
                Live(
                    console=Console(highlight=False),
                    screen=True,
                    auto_refresh=False,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
            )
            self.draw()
            self._stack = stack.pop_all()

    def _suspend(self) -> None:
        self._stack.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()  # SIGCONT came

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 1024)
        if not data:
            self._loop.remove_reader(sys.stdin.fileno())
        for key in data.decode(errors="replace"):
            if not self._view.press(key) and not self.ended.done():
                self.ended.set_result(None)
        self.draw()

    def _on_signal(self, number: int, call: Callable[[], object]) -> None:
        if signal.getsignal(number) is not signal.SIG_IGN:
            self._loop.add_signal_handler(number, self._guarded(call))

    def _guarded(self, call: Callable[[], object]) -> Callable[[], None]:
        """Wrap a callback for the event loop: an error in it ends the view."""

        def guarded() -> None:
            try:
                call()
            except Exception as error:
                if not self.ended.done():
                    self.ended.set_exception(error)

        return guarded


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Read keys immediately and without echo; signal keys keep working."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal may be gone
            # Unread keys are dropped, because they were not meant for the shell.
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _logs_held() -> Iterator[None]:
    """Hold log lines until the view is left."""
    if not sys.stderr.isatty():
        yield
        return
    root = logging.getLogger()
    before, held = root.handlers[:], _LogBuffer()
    root.handlers[:] = [held]
    try:
        yield
    finally:
        root.handlers[:] = before
        for record in held.records:
            root.handle(record)


class _LogBuffer(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=_MAX_LOGS)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
