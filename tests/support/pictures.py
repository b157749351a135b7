"""Makes the pictures of ``nsqtools ui`` for README: ``python -m tests.support.pictures``.

They show the sandbox under some load, and are written to ``.github``.
"""

import asyncio
import itertools
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

from nsqtools import Address, Batch, ConsumerConfig, Handler, Producer, Runner
from nsqtools.tasks import end
from tests.support.chromium import Chromium
from tests.support.forkserver import ROOT
from tests.support.process import Cli
from tests.support.servers import SandboxNsqd, SandboxNsqlookupd, lookup
from tests.support.visiting import Visited

TOPICS = ("orders", "payments", "clicks", "mails", "stock", "invoices")
ROUNDS = 75
"""Pictures of the page for which messages are published before it is photographed."""


class Slow(Handler):
    """Keeps each batch until the next round, and refuses one message in twenty."""

    def __init__(self, rounds: asyncio.Condition) -> None:
        self.rounds = rounds

    async def handle(self, batch: Batch) -> None:
        async with self.rounds:
            await self.rounds.wait()
        batch.requeue([each for each in batch if random.random() < 0.05], delay=2, backoff=False)


async def load(
    nsqds: list[Address], pictures: Iterator[str], is_full: Event, is_over: Event
) -> None:
    """Publish to all topics with each new picture of the page, and consume most of them.

    Sets ``is_full`` after ``ROUNDS``, and goes on until ``is_over``.
    """
    rounds = asyncio.Condition()
    config = ConsumerConfig(max_in_flight=30)
    runners = [
        asyncio.ensure_future(Runner([topic], channel, Slow(rounds), config, nsqds=nsqds).run())
        for topic in TOPICS[:4]
        for channel in ("archive", "billing")
    ]
    async with Producer(nsqds) as producer:
        for count in itertools.count(1):
            await asyncio.to_thread(next, pictures)
            for number, topic in random.sample(list(enumerate(TOPICS)), len(TOPICS)):
                order = {"id": random.randrange(10**6), "user": "ann", "amount": 9.5}
                size = random.randrange(5, 30 + 15 * number)
                await producer.publish(topic, [json.dumps(order).encode()] * size)
            async with rounds:
                rounds.notify_all()
            if count == ROUNDS:
                is_full.set()
            if is_over.is_set():
                break
    await end(runners)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        lookupd = running.enter_context(SandboxNsqlookupd(folder / "lookupd"))
        nsqds = [
            running.enter_context(SandboxNsqd(folder / f"nsqd{n}", lookupds=[lookupd]))
            for n in range(3)
        ]
        for nsqd in nsqds:
            for topic in TOPICS[:5]:
                nsqd.create(topic, "archive")
        addresses = [each.tcp for each in nsqds]
        cli = Cli(folder)
        running.callback(cli.close)
        visited = Visited(cli, *lookup([lookupd]), "--allow-changes", "--interval", "2s")
        pictures, is_full, is_over = running.enter_context(visited.stream("/")), Event(), Event()
        loading = Thread(
            target=lambda: asyncio.run(load(addresses, pictures, is_full, is_over)), daemon=True
        )
        loading.start()
        is_full.wait()
        browser = running.enter_context(Chromium(folder / "chromium"))
        for picture, path, dark in (
            ("overview", "?sort=depth", False),
            ("channel", "topic/orders/archive", True),
            ("messages", "messages/stock/archive", False),
        ):
            tab = browser.tab(f"{visited.url}{path}", width=1000, height=620, dark=dark)
            if picture == "messages":
                tab.run("document.querySelector('[name=count]').value = 3")
                tab.run("document.querySelector('#live form').submit()")
                tab.until("document.querySelector('.message') !== null")
            else:
                tab.until("document.getElementById('state').textContent == 'live'")
            (ROOT / ".github" / f"ui-{picture}.png").write_bytes(tab.picture())
        is_over.set()
        loading.join()


if __name__ == "__main__":
    main()
