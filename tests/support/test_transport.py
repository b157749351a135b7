import asyncio

import pytest

from tests.support.clock import virtual
from tests.support.transport import FakeTransport


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.calls: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.calls.append(data)

    def eof_received(self) -> None:
        self.calls.append("eof")

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append(("lost", exc))


def connected() -> tuple[FakeTransport, list[object]]:
    protocol = Recorder()
    transport = FakeTransport(protocol)
    transport.connect()
    protocol.calls.clear()
    return transport, protocol.calls


@virtual
async def test_paused_reading_keeps_bytes_back_and_resuming_passes_them_on_in_order() -> None:
    transport, calls = connected()
    transport.pause_reading()
    transport.deliver(b"1")
    transport.deliver(b"2")
    assert calls == []
    transport.resume_reading()
    await asyncio.sleep(0)
    assert calls == [b"1", b"2"]


@virtual
async def test_close_is_told_later_and_once_and_ends_reading_and_writing() -> None:
    transport, calls = connected()
    transport.close()
    transport.close()
    transport.write(b"late")
    transport.deliver(b"late")
    assert calls == []
    assert transport.is_closing()
    await asyncio.sleep(0)
    assert calls == [("lost", None)]
    assert transport.take() == b""


@virtual
async def test_close_waits_for_the_write_buffer_but_abort_does_not() -> None:
    for end, expected in (("close", []), ("abort", [("lost", None)])):
        transport, calls = connected()
        transport.stall()
        transport.write(b"held")
        getattr(transport, end)()
        await asyncio.sleep(0)
        assert calls == expected
        transport.unstall()
        await asyncio.sleep(0)
        assert calls == [("lost", None)]


@virtual
async def test_a_full_write_buffer_pauses_the_protocol_and_an_emptied_one_resumes_it() -> None:
    transport, calls = connected()
    transport.set_write_buffer_limits(high=4)
    transport.stall()
    transport.write(b"1234")
    assert (transport.get_write_buffer_size(), calls) == (4, [])
    transport.write(b"5")
    assert calls == ["pause"]
    transport.unstall()
    assert (transport.get_write_buffer_size(), calls) == (0, ["pause", "resume"])


@virtual
async def test_the_peers_end_of_stream_closes_the_transport() -> None:
    transport, calls = connected()
    transport.deliver_eof()
    await asyncio.sleep(0)
    assert calls == ["eof", ("lost", None)]


@virtual
async def test_a_lost_connection_hands_over_its_error() -> None:
    transport, calls = connected()
    error = ConnectionResetError()
    transport.lose(error)
    await asyncio.sleep(0)
    assert calls == [("lost", error)]


@virtual
async def test_on_write_can_answer() -> None:
    transport, calls = connected()
    transport.on_write = lambda data: transport.deliver(b"got " + data)
    transport.write(b"x")
    await asyncio.sleep(0)
    assert calls == [b"got x"]


@virtual
async def test_writing_after_write_eof_is_an_error_as_on_a_socket() -> None:
    transport, _ = connected()
    transport.write_eof()
    with pytest.raises(RuntimeError, match="write_eof"):
        transport.write(b"x")
