"""``tail`` and ``to-file`` beside the Go tools at several sizes of bodies, in each codec."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.archiving import NAMES, archive, events
from tests.bench.measuring import Pair, Side, consume
from tests.support.servers import at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.binaries import Nsq
    from tests.support.servers import Nsqd

_VOLUME = 2 << 30
"""Bytes of all bodies of a run at most, which make it fewer messages."""
_DIFFERENT = 64
"""Bodies, so that a codec finds nothing of one in the next."""
_SYNCS = ["--sync-interval", "100ms"]
"""The last messages are safe soon; before, what is in flight makes for more syncs than this."""


def by_size(
    nsqd: Nsqd, nsq: Nsq, n: int, scratch: str, sizes: Sequence[int], codecs: Sequence[str]
) -> list[Pair]:
    """What is compared, in order; ``plain`` is no codec."""
    pairs = []
    folder = Path(scratch, "archive")
    python = [sys.executable, "-m", "nsqtools"]
    for size in sizes:
        text = b"".join(events(_DIFFERENT * size // 200 + 1))
        bodies = [text[start : start + size] for start in range(0, _DIFFERENT * size, size)]
        messages = min(n, _VOLUME // size)
        tail = ["--topic", "TOPIC", "--channel", "bench", "-n", str(messages), *at(nsqd)]
        shown = partial(consume, nsqd, messages, bodies=bodies)
        kept = partial(archive, nsqd, messages, folder=folder, bodies=bodies, settled=True)
        for codec in codecs:
            flags = [] if codec == "plain" else ["--consumer-opt", f"{codec},true"]
            for ours, theirs, run, argv in (
                ("tail", "nsq_tail", shown, [*tail, *flags]),
                ("to-file", "nsq_to_file", kept, [*NAMES, *_SYNCS, *flags]),
            ):
                name = f"{ours}, {size:,} B, {codec}"
                pairs.append(
                    Pair(
                        Side(name, partial(run, [*python, ours, *argv])),
                        Side(theirs, partial(run, [nsq.path(theirs), *argv])),
                    )
                )
    return pairs
