"""Requests as --dry-run shows them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx
import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.dryrun import DryRun
from nsqtools.sinks.stdout import Output
from tests.support.archiving import message
from tests.support.clock import virtual
from tests.support.delivering import delivering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@contextlib.contextmanager
def dry_run(path: Path | str, *, escape: bool = False) -> Iterator[DryRun]:
    with open(path, "ab", buffering=0) as file:
        yield DryRun(Output(file.fileno(), "standard output"), escape=escape)


async def show(request: httpx.Request, out: Path, *, escape: bool = False) -> None:
    with dry_run(out, escape=escape) as run:
        assert (await run.handle_async_request(request)).status_code == 200
        await run.aclose()


def shown(out: Path) -> bytes:
    return out.read_bytes()


@virtual
class TestDryRun:
    async def test_a_request_is_shown_as_it_goes_out_but_for_its_line_ends(self, out: Path) -> None:
        (endpoint,) = make_endpoints(post=["http://a:81/x?y=1"], headers=[(b"X-Own", b"own")])
        await show(endpoint.build("t", "c", message(b'{"a": 1}'), 0.0), out)
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
        self, escape: bool, expected: bytes, out: Path
    ) -> None:
        body = b"one\r\n\r\ntwo\r\n\x1b[31m\x00\xff"
        request = httpx.Request("POST", "http://a/", content=body)
        await show(request, out, escape=escape)
        assert shown(out).endswith(b"\n\n%b\n\n" % expected)

    async def test_requests_at_once_do_not_mix_and_all_are_finished(self, out: Path) -> None:
        with dry_run(out) as run:
            async with delivering(transport=run, workers=10) as running:
                await running.deliver(*[b"body-%03d" % n * 1000 for n in range(50)])
                assert len(running.finished) == 50
        text = shown(out)
        assert text.count(b"POST / HTTP/1.1\n") == 50
        assert all(b"\n\n%b\n\n" % (b"body-%03d" % n * 1000) in text for n in range(50))

    async def test_an_output_that_cannot_be_written_ends_the_run(self) -> None:
        with dry_run("/dev/full") as run:
            async with delivering(transport=run) as running:
                await running.deliver(b"one")
                assert running.requeued == [(b"one", 0, False)]
                with pytest.raises(OutputError, match="No space left on device"):
                    running.sink.failed.result()
