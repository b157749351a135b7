"""``to-http --workers``: processes that share the work, killed with their parent."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from nsqtools.cli.exits import Exit
from nsqtools.cli.workers import Worker, _Crew
from tests.support.clock import turns
from tests.support.consuming import Running
from tests.support.eventually import eventually
from tests.support.posting import Posting
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, free_port
from tests.support.webserver import WebServer

WINDOW = 50


def workers(running: Running) -> list[int]:
    """The processes that a run has started."""
    pid = running.process.pid
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(each) for each in file.read().split()]


def two(running: Running) -> list[int]:
    eventually(lambda: len(workers(running)) == 2)
    return workers(running)


@pytest.fixture
def posting(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Posting:
    posting = Posting(nsqtools_cli, make_nsqd("-msg-timeout=1s"), topic, tmp_path)
    posting.make_known()
    return posting


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


def start(posting: Posting, web: WebServer, *options: str) -> Running:
    limits = ("--workers", "2", "--max-in-flight", str(WINDOW), "-n", "7")
    return posting.start("--post", web.url(), *limits, *options)


def test_a_killed_worker_is_replaced_and_a_killed_parent_leaves_nobody(
    posting: Posting, web: WebServer
) -> None:
    posting.numbers(2000)
    port = free_port()
    run = start(posting, web, "--metrics-address", f"127.0.0.1:{port}")
    first = two(run)
    eventually(lambda: posting.channel()["client_count"] == 2)
    os.kill(first[0], signal.SIGKILL)
    eventually(lambda: len({*first, *two(run)}) == 3)
    eventually(lambda: posting.channel()["client_count"] == 2)

    def scrape() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            text: str = response.read().decode()
            return text

    eventually(lambda: all(f'worker="{number}"}} 1.0' in scrape() for number in range(2)))
    run.kill()
    eventually(lambda: posting.channel()["client_count"] == 0)
    posting.run("--post", web.url(), "--workers", "3")
    found = Counter(int(request.body) for request in web.requests)
    assert found.keys() == set(range(2000))
    assert found.total() - 2000 <= WINDOW


def test_a_signal_drains_all_workers(posting: Posting, web: WebServer) -> None:
    posting.numbers(200)
    run = start(posting, web)
    eventually(lambda: posting.channel()["client_count"] == 2)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(60) == 130, run.said
    assert posting.channel()["in_flight_count"] == 0
    assert posting.held + len(web.requests) == 200


def test_a_failure_at_the_start_is_reported_once(nsqtools_cli: Cli) -> None:
    source = ("--nsqd-tcp-address", f"127.0.0.1:{free_port()}", "--topic", "t", "--channel", "c")
    job = ("--workers", "3", "--max-duration", "1m")  # a service would wait
    run = nsqtools_cli("to-http", *source, "--post", "http://127.0.0.1:1/", *job)
    assert run.code == Exit.UNREACHABLE
    assert len(run.stderr.splitlines()) == 1


def test_shares_are_all_there_is() -> None:
    assert [Worker(number, 3).share(200) for number in range(3)] == [67, 67, 66]


def test_workers_that_only_die_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    die = "import os; print('ready', flush=True); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", die])
    assert asyncio.run(_Crew(2, endless=True).run()) == Exit.FAILURE


@pytest.mark.parametrize("endless", [True, False])
async def test_a_worker_that_failed_ends_the_others_unless_they_end_by_themselves(
    endless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, both = _Crew(2, endless=endless), asyncio.Event()

    async def run_one(number: int) -> int:
        if number:
            both.set()
            await (crew._stop.wait() if endless else turns())
            return Exit.DONE
        crew._reached.set()
        await both.wait()
        return Exit.FAILURE

    monkeypatch.setattr(crew, "_run_one", run_one)
    assert await crew.run() == Exit.FAILURE
    assert crew._stop.is_set() == endless
