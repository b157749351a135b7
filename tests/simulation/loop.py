"""An event loop with a clock, a network and threads of its own, which a seed decides."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from tests.simulation.network import Network
from tests.support.clock import VirtualLoop
from tests.support.processes import CURRENT, Baton, Killed, Process

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from random import Random


class SimulatedLoop(VirtualLoop):
    """Runs the callbacks of all processes; what is none of a process is the world's own."""

    def __init__(self, rng: Random, limit: float) -> None:
        super().__init__(0.0, limit)
        self.network = Network(self, rng)
        self.baton = Baton(self.call_later)
        self._rng = rng

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = context or copy_context()
        if process := context.get(CURRENT):
            if not process.alive:
                return asyncio.Handle(bool, (), self)
            return super().call_soon(process.run, callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        context = context or copy_context()
        if process := context.get(CURRENT):
            if not process.alive:
                return asyncio.TimerHandle(when, bool, (), self)
            return super().call_at(when, process.run, callback, *args, context=context)
        return super().call_at(when, callback, *args, context=context)

    def timers_of(self, process: Process) -> list[asyncio.TimerHandle]:
        """The timers of a process that are still to fire."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return [
            each
            for each in timers
            if not each.cancelled() and each._context.get(CURRENT) is process  # type: ignore[attr-defined]
        ]

    def outside(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Call later what belongs to no process."""
        empty = copy_context()
        empty.run(CURRENT.set, None)
        super().call_at(self.time() + delay, callback, *args, context=empty)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        host: str,
        port: int,
        *,
        ssl: Any = None,
        **_: Any,
    ) -> tuple[asyncio.Transport, Any]:
        assert not ssl, "there is no TLS in the simulation"
        return await self.network.connect(_process(), protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> Any:
        return self.network.listen(_process(), protocol_factory, host, port)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it in a thread that the loop waits for, after a moment, and tell a moment later."""
        result: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            try:
                value, error = func(*args), None
            except Killed:
                raise
            except BaseException as raised:
                value, error = None, raised
            self.call_later(self._rng.choice((0.0, 0.0, 0.0001, 0.002)), finish, value, error)

        def finish(value: object, error: BaseException | None) -> None:
            if result.done():
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        process = _process()
        self.call_later(self._rng.choice((0.0, 0.0001)), lambda: self.baton.start(process, work))
        return result

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        process, context = _process(), copy_context()
        process.signals[sig] = lambda: self.call_soon(callback, *args, context=context)

    def remove_reader(self, fd: Any) -> bool:
        return False

    def _asyncgen_firstiter_hook(self, agen: object) -> None:
        """What a dead process has not ended is not ended for it."""

    def _asyncgen_finalizer_hook(self, agen: object) -> None:
        """Nor when it is collected."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.trouble(context)

    def trouble(self, context: dict[str, Any]) -> None:
        """Called with what asyncio would log; the world replaces it."""
        raise AssertionError(str(context))


def _process() -> Process:
    process = CURRENT.get()
    assert process is not None, "only processes have sockets, threads and signals"
    return process
