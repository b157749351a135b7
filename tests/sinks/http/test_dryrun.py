"""Requests as --dry-run shows them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import httpx
import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.dryrun import DryRun
from nsqtools.sinks.stdout import Output
from tests.support.clock import virtual
from tests.support.delivering import delivering
from tests.support.requesting import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeDryRun = Callable[..., DryRun]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def dry_run(out: Path) -> Iterator[MakeDryRun]:
    """Makes one that writes to the file, or to another."""
    opened: list[int] = []

    def make(path: Path | str = out, *, escape: bool = False) -> DryRun:
        opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        return DryRun(Output(opened[-1], "standard output"), escape=escape)

    yield make
    for fd in opened:
        os.close(fd)


def shown(out: Path) -> bytes:
    return out.read_bytes()


async def show(run: DryRun, request: httpx.Request) -> None:
    assert (await run.handle_async_request(request)).status_code == 200
    await run.aclose()


@virtual
class TestDryRun:
    async def test_a_request_is_shown_as_it_goes_out_but_for_its_line_ends(
        self, out: Path, dry_run: MakeDryRun
    ) -> None:
        (endpoint,) = make_endpoints(post=["http://a:81/x?y=1"], headers=[(b"X-Own", b"own")])
        await show(dry_run(), endpoint.build("t", "c", message(b'{"a": 1}'), 0.0))
        head, _, body = shown(out).partition(b"\n\n")
        lines = head.split(b"\n")
        assert lines[0] == b"POST /x?y=1 HTTP/1.1"
        assert {b"Host: a:81", b"X-Own: own", b"Content-Length: 8", b"X-NSQ-Topic: t"} < set(lines)
        assert body == b'{"a": 1}\n\n'
        assert b"\r" not in head

    @pytest.mark.parametrize(
        ("escape", "expected"),
        [
            (False, b"one\r\n\r\ntwo\r\n\x1b[31m\x00\xff"),
            (True, rb"one\x0d" b"\n" rb"\x0d" b"\n" rb"two\x0d" b"\n" rb"\x1b[31m\x00\xff"),
        ],
    )
    async def test_a_body_is_shown_as_it_is_but_drives_no_terminal(
        self, escape: bool, expected: bytes, out: Path, dry_run: MakeDryRun
    ) -> None:
        body = b"one\r\n\r\ntwo\r\n\x1b[31m\x00\xff"
        request = httpx.Request("POST", "http://a/", content=body)
        await show(dry_run(escape=escape), request)
        assert shown(out).endswith(b"\n\n%b\n\n" % expected)

    async def test_requests_at_once_do_not_mix_and_all_are_finished(
        self, out: Path, dry_run: MakeDryRun
    ) -> None:
        async with delivering(transport=dry_run(), workers=10) as running:
            await running.deliver(*[b"body-%03d" % n * 1000 for n in range(50)])
            assert len(running.finished) == 50
            await running.close()
        text = shown(out)
        assert text.count(b"POST / HTTP/1.1\n") == 50
        assert all(b"\n\n%b\n\n" % (b"body-%03d" % n * 1000) in text for n in range(50))

    async def test_an_output_that_cannot_be_written_ends_the_run(self, dry_run: MakeDryRun) -> None:
        async with delivering(transport=dry_run("/dev/full")) as running:
            await running.deliver(b"one")
            assert running.requeued == [(b"one", 0, False)]
            with pytest.raises(OutputError, match="No space left on device"):
                running.sink.failed.result()

    async def test_without_a_request_the_output_is_left_alone(
        self, out: Path, dry_run: MakeDryRun
    ) -> None:
        await dry_run().aclose()
        assert shown(out) == b""
