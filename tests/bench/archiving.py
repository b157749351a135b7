"""``to-file`` beside ``nsq_to_file``, with fsync on, until nsqd has nothing left to send."""

from __future__ import annotations

import json
import random
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.measuring import Pair, Run, Side, drain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.binaries import Nsq
    from tests.support.servers import Nsqd

_SIZE = 200
NAMES = ["--filename-format", "<TOPIC><REV>.<DATETIME>.log"]  # nsq_to_file wants <REV> for gzip


def events(number: int) -> list[bytes]:
    """JSON objects of 200 bytes, which compress about as well as logs do."""
    rng = random.Random(1)
    return [
        json.dumps(
            {
                "id": each,
                "user": rng.randrange(10**6),
                "path": f"/{rng.choice('abcdefgh')}/{rng.randrange(1000)}",
                "ip": ".".join(str(rng.randrange(256)) for _ in range(4)),
                "agent": "Mozilla/5.0",
                "seconds": rng.random(),
            }
        )
        .ljust(_SIZE)[:_SIZE]
        .encode()
        for each in range(number)
    ]


def archive(
    nsqd: Nsqd,
    messages: int,
    argv: Sequence[str],
    *,
    folder: Path,
    bodies: Sequence[bytes],
    settled: bool = False,
) -> Run:
    """Archive a topic's messages in an empty folder, until ``drain`` sees its end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    argv = [*argv, "--output-dir", str(folder)]
    return drain(nsqd, messages, argv, bodies=bodies, settled=settled)


def archiving(nsqd: Nsqd, nsq: Nsq, n: int, scratch: str) -> list[Pair]:
    """What is compared, in order."""
    run = partial(archive, nsqd, n, folder=Path(scratch, "archive"), bodies=events(10_000))

    def side(name: str, argv: Sequence[str]) -> Side:
        return Side(name, partial(run, argv))

    ours = [sys.executable, "-m", "nsqtools", "to-file", *NAMES]
    theirs = [nsq.path("nsq_to_file"), *NAMES]
    wide = ["--max-in-flight", "2500"]
    go_gzip = side("nsq_to_file --gzip", [*theirs, "--gzip"])
    return [
        Pair(side("to-file", ours), side("nsq_to_file", theirs)),
        Pair(
            side("to-file --max-in-flight 2500", [*ours, *wide]),
            side("nsq_to_file, same", [*theirs, *wide]),
        ),
        Pair(side("to-file --gzip", [*ours, "--gzip"]), go_gzip),
        Pair(side("to-file --compress zstd", [*ours, "--compress", "zstd"]), go_gzip),
    ]
