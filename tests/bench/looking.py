"""``stats`` of a large cluster beside nsq_stat, which tells of one channel of it."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.measuring import Pair, Side, measure
from tests.support.servers import Nsqd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.binaries import Nsq

TOPICS, CHANNELS, NSQDS = 500, 4, 3


@contextmanager
def large_cluster(folder: str) -> Iterator[list[str]]:
    """The HTTP addresses of nsqds that each have all topics and channels."""
    topics = [
        {"name": f"topic-{n}", "channels": [{"name": f"channel-{m}"} for m in range(CHANNELS)]}
        for n in range(TOPICS)
    ]
    with ExitStack() as stack:
        found = []
        for number in range(NSQDS):
            path = Path(folder, f"large-{number}")
            path.mkdir()
            (path / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": topics}))
            found.append(str(stack.enter_context(Nsqd(path)).http))
        yield found


def looking(addresses: list[str], nsq: Nsq) -> list[Pair]:
    """What is compared, in order; a message is a report."""
    where = [f"--nsqd-http-address={each}" for each in addresses]
    one = ["--topic=topic-1", "--channel=channel-1", *where]
    stats = [sys.executable, "-m", "nsqtools", "stats", *where, "--once"]
    go = [nsq.path("nsq_stat"), "--count=1", "--interval=1ms", *one]
    every = f"{TOPICS} topics, {CHANNELS} channels, {NSQDS} nsqds"
    nsq_stat = Side("nsq_stat, a channel", lambda: measure(go, 1))
    return [Pair(Side(f"stats: {every}", lambda: measure(stats, 1)), nsq_stat)]
