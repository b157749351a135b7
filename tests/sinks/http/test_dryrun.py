"""Requests as --dry-run shows them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import httpx
import pytest

from nsqtools.errors import OutputError
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.dryrun import DryRun
from nsqtools.sinks.stdout import Output
from tests.support.clock import elapse, virtual
from tests.support.delivering import SOON, delivering
from tests.support.requesting import message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def dry_run(path: Path, *, escape: bool = False) -> Iterator[DryRun]:
    """One that writes to a file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield DryRun(Output(fd, "standard output"), escape=escape)
    finally:
        os.close(fd)


async def show(path: Path, body: bytes, *, escape: bool = False) -> bytes:
    """What is written of one POST."""
    (endpoint,) = make_endpoints(post=["http://a:81/x?y=1"], headers=[(b"X-Own", b"own")])
    with dry_run(path, escape=escape) as run:
        response = await run.handle_async_request(endpoint.build("t", "c", message(body), 0.0))
        await run.aclose()
    assert response.status_code == 200
    return path.read_bytes()  # noqa: ASYNC240


@virtual
async def test_a_request_is_shown_as_it_goes_out_but_for_its_line_ends(tmp_path: Path) -> None:
    head, _, body = (await show(tmp_path / "out", b'{"a": 1}')).partition(b"\n\n")
    lines = head.split(b"\n")
    assert lines[0] == b"POST /x?y=1 HTTP/1.1"
    assert {b"Host: a:81", b"X-Own: own", b"Content-Length: 8", b"X-NSQ-Topic: t"} < set(lines)
    assert body == b'{"a": 1}\n\n'
    assert b"\r" not in head


@virtual
async def test_a_body_is_shown_as_it_is_whatever_it_holds(tmp_path: Path) -> None:
    body = b"one\r\n\r\ntwo\r\n\x1b[31m\x00\xff"
    shown = await show(tmp_path / "out", body)
    assert shown.endswith(b"\n\n%b\n\n" % body)


@virtual
async def test_a_terminal_is_not_driven_by_a_body(tmp_path: Path) -> None:
    shown = await show(tmp_path / "out", b"one\r\n\x1b[31m\xff\tend", escape=True)
    assert shown.endswith(b"\n\none\\x0d\n\\x1b[31m\\xff\tend\n\n")


@virtual
async def test_a_get_is_shown_without_a_body(tmp_path: Path) -> None:
    (endpoint,) = make_endpoints(get=["http://a/x/%s"])
    with dry_run(tmp_path / "out") as run:
        await run.handle_async_request(endpoint.build("t", "c", message(b"a b"), 0.0))
        await run.aclose()
    shown = (tmp_path / "out").read_bytes()
    assert shown.startswith(b"GET /x/a+b HTTP/1.1\n")
    assert shown.endswith(b"\n\n\n")


@virtual
async def test_requests_at_once_do_not_mix_and_all_are_finished(tmp_path: Path) -> None:
    with dry_run(tmp_path / "out") as run:
        async with delivering(transport=run, workers=10) as running:
            await running.handle(*[b"body-%03d" % n * 1000 for n in range(50)])
            await elapse(SOON)
            assert len(running.finished) == 50
            await running.close()
    shown = (tmp_path / "out").read_bytes()
    assert shown.count(b"POST / HTTP/1.1\n") == 50
    assert all(b"\n\n%b\n\n" % (b"body-%03d" % n * 1000) in shown for n in range(50))


@virtual
async def test_an_output_that_cannot_be_written_ends_the_run() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        run = DryRun(Output(fd, "standard output"), escape=False)
        async with delivering(transport=run) as running:
            await running.handle(b"one")
            await elapse(SOON)
            assert running.requeued == [(b"one", 0, False)]
            with pytest.raises(OutputError, match=r"^standard output: No space left on device$"):
                running.sink.failed.result()
    finally:
        os.close(fd)


@virtual
async def test_without_a_request_the_output_is_left_alone(tmp_path: Path) -> None:
    with dry_run(tmp_path / "out") as run:
        await run.aclose()
    assert (tmp_path / "out").read_bytes() == b""


@virtual
async def test_any_request_of_httpx_can_be_shown(tmp_path: Path) -> None:
    with dry_run(tmp_path / "out") as run:
        await run.handle_async_request(httpx.Request("POST", "http://a/", content=b"x"))
        await run.aclose()
    assert (tmp_path / "out").read_bytes().startswith(b"POST / HTTP/1.1\nHost: a\n")
