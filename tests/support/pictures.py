"""Makes the pictures of ``nsqtools ui`` for README: ``python -m tests.support.pictures``.

They show the sandbox under some load, and are written to ``.github``.
"""

import asyncio
import json
import random
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from nsqtools import Address, Handler, Producer, Runner, StopOptions
from tests.support.chromium import Chromium
from tests.support.forkserver import ROOT
from tests.support.process import Cli
from tests.support.servers import SandboxNsqd, SandboxNsqlookupd, lookup
from tests.support.visiting import Visited

TOPICS = ("orders", "payments", "clicks", "mails", "stock", "invoices")
SECONDS = 150.0
BROWSED = 6.0


class Slow(Handler):
    """Takes 0.05 s for each batch, and refuses one message in twenty."""

    async def handle(self, batch) -> None:  # type: ignore[no-untyped-def]
        await asyncio.sleep(0.05)
        batch.requeue([each for each in batch if random.random() < 0.05], delay=2, backoff=False)


async def load(nsqds: list[Address], seconds: float) -> None:
    """Publish to all topics, and consume most of them."""
    stop = StopOptions(max_duration=seconds)
    runners = [
        Runner([topic], channel, Slow(), nsqds=nsqds, stop=stop)
        for topic in TOPICS[:4]
        for channel in ("archive", "billing")
    ]

    async def publish() -> None:
        async with Producer(nsqds) as producer:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for number, topic in random.sample(list(enumerate(TOPICS)), len(TOPICS)):
                    order = {"id": random.randrange(10**6), "user": "ann", "amount": 9.5}
                    count = random.randrange(1, 6 + 3 * number)
                    await producer.publish(topic, [json.dumps(order).encode()] * count)
                await asyncio.sleep(0.4)

    await asyncio.gather(publish(), *(runner.run() for runner in runners))


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
        loading = threading.Thread(
            target=lambda: asyncio.run(load(addresses, SECONDS + BROWSED)), daemon=True
        )
        loading.start()
        cli = Cli(folder)
        running.callback(cli.close)
        visited = Visited(cli, *lookup([lookupd]), "--allow-changes", "--interval", "2s")
        time.sleep(SECONDS)
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
        loading.join()


if __name__ == "__main__":
    main()
