"""A TCP proxy between client and server that cuts connections."""

import asyncio
import contextlib
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from nsqtools.names import Address
from nsqtools.net.tcp import close
from tests.support.servers import free_port

Cut = Literal["rst", "fin"]


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to one connection; "up" is from the client to the server.

    After ``cut_up_after`` or ``cut_down_after`` bytes both sides are cut.
    """

    cut_up_after: int | None = None
    cut_down_after: int | None = None
    cut: Cut = "rst"


class Proxy:
    """``async with Proxy(nsqd.tcp) as proxy``, then connect to ``proxy.address``.

    The connections meet ``faults`` in turn: the first the first, and those after the last none.
    ``connections`` counts them all.
    """

    def __init__(self, target: Address, faults: Iterable[Faults] = ()) -> None:
        self.target = target
        self.address = Address("127.0.0.1", free_port())
        self.connections = 0
        self._faults = iter(faults)
        self._open: set[_Pair] = set()
        self._listener: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, *self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        await close(self._listener)
        running = [pair.task for pair in self._open]
        self.cut()
        await asyncio.gather(*running, return_exceptions=True)

    def cut(self) -> None:
        """Cut all open connections on both sides."""
        for pair in tuple(self._open):
            pair.cut("rst")

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections += 1
        faults = next(self._faults, Faults())
        task = asyncio.current_task()
        assert task
        pair = _Pair(task, [writer])
        self._open.add(pair)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            pair.writers.append(far_writer)
            for each in pair.writers:
                each.transport.set_write_buffer_limits(0)  # drain() waits until all is sent
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(pair.pump(reader, far_writer, faults, faults.cut_up_after))
                pumps.create_task(pair.pump(far_reader, writer, faults, faults.cut_down_after))
        except* OSError:
            pass  # either side went away, or the server cannot be reached
        finally:
            pair.reset()
            self._open.discard(pair)


@dataclass(slots=True, eq=False)
class _Pair:
    """The two sockets of one proxied connection."""

    task: asyncio.Task[None]
    writers: list[StreamWriter]
    discards: bool = False

    async def pump(
        self, reader: StreamReader, writer: StreamWriter, faults: Faults, budget: int | None
    ) -> None:
        """Copy one direction until its end of stream, or until ``budget`` bytes went through."""
        while budget != 0 and (chunk := await reader.read(65536)):
            if budget is not None:
                chunk = chunk[:budget]
                budget -= len(chunk)
            if not self.discards:
                writer.write(chunk)
                await writer.drain()
            await asyncio.sleep(0)
        if budget == 0:
            self.cut(faults.cut)
            while await reader.read(65536):  # what is left unread would turn the FIN into a RST
                pass
        elif not self.discards:
            writer.write_eof()

    def cut(self, how: Cut) -> None:
        if how == "rst":
            self.reset()
            self.task.cancel()
        elif not self.discards:
            self.discards = True
            for writer in self.writers:
                writer.write_eof()

    def reset(self) -> None:
        """Close both at once: RST, unless the peer has closed its side already."""
        for writer in self.writers:
            if not writer.transport.is_closing():
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                writer.transport.abort()
