"""Simulated processes: whole commands and servers as groups of callbacks and threads of one loop.

A process may be stopped (SIGSTOP) and killed (kill -9) between any two callbacks, and killed
between any two calls to the disk. What belongs to a dead process never runs again.
"""

from __future__ import annotations

import contextlib
import threading
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)


class Killed(BaseException):
    """The process is dead; raised by everything that it does outside itself."""


class Process:
    """A process on a host; ``context`` is that of its callbacks."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.stopped = False
        self.failing: Sequence[str] = ()
        """The topics of a consumer whose last messages failed, once it has ended."""
        self.signals: dict[int, Callable[[], object]] = {}
        self.on_end: list[Callable[[], object]] = []
        """What the system does when it ends: closes sockets and files."""
        self.context: Context = copy_context()
        self.context.run(CURRENT.set, self)
        self._waiting: list[Callable[[], object]] = []

    def run(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback, unless the process is dead; later, if it is stopped."""
        if not self.alive:
            return
        if self.stopped:
            context = copy_context()
            self._waiting.append(lambda: context.run(self.run, callback, *args))
            return
        with contextlib.suppress(Killed):
            callback(*args)

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def end(self) -> None:
        """Take away what belongs to it: it was killed, or has exited."""
        self.alive = False
        self._waiting.clear()
        ends, self.on_end = self.on_end, []
        for call in ends:
            call()

    def __str__(self) -> str:
        return self.name


class Baton:
    """Threads that block, of which one runs at a time; so they behave alike each time.

    A thread runs until it waits for something or ends; the loop waits meanwhile. ``call_later`` is
    the loop's.
    """

    def __init__(self, call_later: Callable[..., Any]) -> None:
        self.call_later = call_later
        self.closing = False
        self._own = threading.local()
        self._all: list[_Thread] = []

    def start(self, process: Process, work: Callable[[], object]) -> _Thread:
        """Run ``work`` in a thread of the process until it waits for the first time."""
        thread = _Thread(process, work, self._own)
        self._all.append(thread)
        process.run(thread.run)
        return thread

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block this thread until ``ready`` after a ``wake``, or for some seconds; returns ready.

        Outside such threads nobody could make it ready, so it has to be.
        """
        thread: _Thread | None = getattr(self._own, "thread", None)
        if thread is None:
            assert ready(), "the event loop would block for ever"
            return True
        expired: list[bool] = []  # as the time may be a rounding error short of it
        timer = None

        def expire() -> None:
            expired.append(True)
            thread.process.run(thread.run)

        if timeout is not None:
            timer = self.call_later(timeout, expire)
        while not ready() and not expired:
            thread.ready = ready
            thread.pause()
        thread.ready = None
        if timer:
            timer.cancel()
        return ready()

    def pause(self, seconds: float) -> None:
        """Block this thread for some time; without effect in the event loop."""
        if getattr(self._own, "thread", None):
            self.wait(lambda: False, seconds)

    def wake(self) -> None:
        """Let threads run again that wait for what is ready now."""
        for thread in self._all[:]:
            if thread.ready and thread.ready():
                self.call_later(0, thread.process.run, thread.run)
        self._all = [thread for thread in self._all if not thread.done]

    def close(self) -> None:
        """End all threads, as with their processes dead."""
        for thread in self._all:
            thread.process.alive = False
            while not thread.done:
                thread.run()


class _Thread:
    def __init__(self, process: Process, work: Callable[[], object], own: threading.local) -> None:
        self.process = process
        self.done = False
        self.ready: Callable[[], bool] | None = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._running = False

        def body() -> None:
            own.thread = self
            self._go.acquire()
            try:
                if process.alive:
                    work()
            except Killed:
                pass
            finally:
                self.done = True
                self._paused.release()

        context = process.context.copy()
        self._thread = threading.Thread(target=context.run, args=(body,), daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Let it run until it pauses or ends; the caller waits."""
        if self.done or self._running:
            return
        self._running = True
        self._go.release()
        self._paused.acquire()
        self._running = False

    def pause(self) -> None:
        """Called by itself: let the loop go on."""
        self._paused.release()
        self._go.acquire()
        if not self.process.alive:
            raise Killed
