"""A cluster of 2,000 channels and 5,000 clients on three nsqds, and many who look at it."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import parse_qs, urlsplit

from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.visiting import Visited
from tests.support.webserver import Answer, Request, WebServer

TOPICS, CHANNELS, CLIENTS, NSQDS = 200, 10, 5001, 3
TABS = 20


class Crowd:
    """The /info and /stats of one nsqd; the clients are on channel t0/ch9."""

    def __init__(self, number: int) -> None:
        info = {"version": "1.3.0", "broadcast_address": f"host{number}", "tcp_port": 4150}
        self.info = json.dumps({**info, "hostname": f"host{number}", "start_time": 1}).encode()
        self.all = self._stats(range(TOPICS), 0)
        self.busy = self._stats(range(1), CLIENTS // NSQDS)

    def _stats(self, topics: range, clients: int) -> bytes:
        connected = [
            {"client_id": f"c{n}", "remote_address": f"10.0.0.1:{n}", "finish_count": n}
            for n in range(clients)
        ]
        channels = [
            {
                "channel_name": f"ch{n}",
                "depth": n,
                "message_count": 9,
                "clients": connected if n == 9 else [],
            }
            for n in range(CHANNELS)
        ]
        found = [
            {"topic_name": f"t{n}", "depth": 0, "message_count": 9, "channels": channels}
            for n in topics
        ]
        return json.dumps({"version": "1.3.0", "start_time": 1, "topics": found}).encode()

    def answer(self, request: Request) -> Answer:
        url = urlsplit(request.target)
        if url.path == "/info":
            return Answer(body=self.info)
        return Answer(body=self.busy if "topic" in parse_qs(url.query) else self.all)


def asked(nsqd: WebServer) -> tuple[int, int]:
    """The number of rounds for everybody, and of those for topic t0."""
    targets = [each.target for each in nsqd.requests[:] if each.target.startswith("/stats")]
    detailed = sum("topic=t0" in each for each in targets)
    return len(targets) - detailed, detailed


def test_any_number_of_tabs_asks_for_one_round(nsqtools_cli: Cli) -> None:
    with ExitStack() as stack:
        nsqds = [stack.enter_context(WebServer(Crowd(n).answer)) for n in range(NSQDS)]
        given = [arg for each in nsqds for arg in ("--nsqd-http-address", str(each.address))]
        visited = Visited(nsqtools_cli, *given, "--interval", "1s")
        first = visited.get("/").text
        assert "200 topics" in first
        assert len(first) < 100_000
        page = visited.get("/topic/t0/ch9").text
        assert "and 4,501 more consumers" in page
        assert len(page) < 500_000
        paths = ("/", "/topic/t0/ch9") * (TABS // 2)
        tabs = [stack.enter_context(visited.stream(path)) for path in paths]
        for _ in range(4):  # the page as it is, then three pictures
            assert all(next(events) for events in tabs)
        for nsqd in nsqds:
            rounds, detailed = asked(nsqd)
            assert rounds >= 4
            assert 1 < detailed <= rounds + 1


def test_visitors_of_two_topics_do_not_wait_for_each_other(nsqtools_cli: Cli) -> None:
    crowd = Crowd(0)

    def answer(request: Request) -> Answer:
        return Answer(hangs=True) if "topic=" in request.target else crowd.answer(request)

    with ThreadPoolExecutor(2) as pool, WebServer(answer) as nsqd:
        patient = ("--timeout", "10m", "--http-client-request-timeout", "10m", "--interval", "10m")
        visited = Visited(nsqtools_cli, "--nsqd-http-address", str(nsqd.address), *patient)
        pages = pool.map(visited.get, ("/topic/t0", "/topic/t1"))
        eventually(lambda: sum("topic=t" in each.target for each in nsqd.requests) == 2)
    for page in pages:
        assert "Numbers are incomplete: no answer from 1 server" in page.text
