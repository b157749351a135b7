"""``to-file`` beside ``nsq_to_file``, with fsync on, until nsqd has nothing left to send."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.measuring import ENVIRONMENT, Pair, Peak, Run, Side, filled
from tests.support.servers import at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.binaries import Nsq
    from tests.support.servers import Nsqd

_SIZE = 200
_LOOK = 0.02
"""Seconds between looks at nsqd, which cost both sides the same."""
_NAMES = ["--filename-format", "<TOPIC><REV>.<DATETIME>.log"]  # nsq_to_file wants <REV> for gzip


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


def archive(nsqd: Nsqd, messages: int, argv: Sequence[str], folder: Path) -> Run:
    """Archive a topic's messages in an empty folder, until none waits in nsqd."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with filled(nsqd, messages, events(10_000)) as topic:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*argv, "--topic", topic, "--channel", "bench", *at(nsqd), "--output-dir", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        peak = Peak(process.pid)
        peak.start()
        while nsqd.channel(topic, "bench")["depth"] and process.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
        seconds = time.perf_counter() - started
        process.kill()  # neither has to say goodbye
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        memory = peak.end()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Run(messages, seconds, usage.ru_utime + usage.ru_stime, memory)


def archiving(nsqd: Nsqd, nsq: Nsq, n: int, scratch: str) -> list[Pair]:
    """What is compared, in order."""
    folder = Path(scratch, "archive")

    def side(name: str, argv: Sequence[str]) -> Side:
        return Side(name, partial(archive, nsqd, n, argv, folder))

    ours = [sys.executable, "-m", "nsqtools", "to-file", *_NAMES]
    theirs = [nsq.path("nsq_to_file"), *_NAMES]
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
