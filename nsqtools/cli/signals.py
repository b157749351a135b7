"""What SIGINT, SIGTERM and SIGHUP do to a command that runs; light enough for a TAB press."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from nsqtools.cli.exits import Exit

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable

# How long a second signal lets the event loop end by itself.
_LEAVE_TIMEOUT = 0.5

# timeout(1) sends its signal to the command and then to the group, in which it is, too.
_SAME = 0.1


class Signals:
    """SIGINT, SIGTERM and SIGHUP stop; a second one leaves at once, unless it is the first again.

    With ``hangup`` SIGHUP calls that, each time, and counts as none of them. A signal that was
    ignored when the program started, as in a shell's background job, stays so. ``consequence`` is
    what is said when a second one comes.
    """

    def __init__(
        self,
        stop: Callable[[], object],
        leave: Callable[[], object],
        consequence: str,
        *,
        hangup: Callable[[], object] | None = None,
    ) -> None:
        self._stop = stop
        self._leave = leave
        self._hangup = hangup
        self._consequence = consequence
        self._seen: list[signal.Signals] = []
        self._came = 0.0
        self._loop = _listen(self._caught)

    @property
    def seen(self) -> bool:
        """Whether any came."""
        return bool(self._seen)

    @property
    def urgent(self) -> bool:
        """Whether a second one came."""
        return len(self._seen) > 1

    def exit_code(self, drained: int) -> int:
        """The exit code after a signal; ``drained`` is that of SIGTERM if everything was done."""
        if self._seen[0] is signal.SIGINT:
            return Exit.INTERRUPTED
        return Exit.FAILURE if self.urgent else drained

    def _caught(self, number: int) -> None:
        if self._hangup and number == signal.SIGHUP:
            self._hangup()
            return
        now = self._loop.time()
        if number in self._seen and now - self._came < _SAME:
            return
        self._came = now
        self._seen.append(signal.Signals(number))
        if not self.urgent:
            self._stop()
            return
        from logging import getLogger

        getLogger(__name__).warning("leaving at once: %s", self._consequence)
        self._leave()
        # A thread that hangs in a look-up of a name would be waited for.
        self._loop.call_later(_LEAVE_TIMEOUT, os._exit, self.exit_code(Exit.FAILURE))


def first_signal() -> Future[signal.Signals]:
    """Ends with SIGINT, SIGTERM or SIGHUP, whichever comes first; later ones are ignored."""
    import asyncio

    came: Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def caught(number: int) -> None:
        if not came.done():
            came.set_result(signal.Signals(number))

    _listen(caught)
    return came


def _listen(caught: Callable[[int], object]) -> AbstractEventLoop:
    import asyncio

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, caught, number)
    return loop
