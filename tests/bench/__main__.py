"""Starts a real nsqd and prints how nsqtools compares with the Go tools, as ratios.

Each pair runs in turn, A B A B, so that a machine that slows down slows both. Ratios are medians.
A TAB press that takes longer than its bound makes the exit status 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nsqtools.cli.complete import LINE
from nsqtools.cli.exits import COMPLETE
from tests.bench.archiving import archiving
from tests.bench.delivering import delivering
from tests.bench.lakes import Lakes
from tests.bench.measuring import BODY, Pair, Side, compare, consume, measure
from tests.support.binaries import require_nsq
from tests.support.nginx import Nginx
from tests.support.servers import Nsqd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.binaries import Nsq

SLOWEST_TAB = 1.6  # of the time to start Python and import click
FILE = """\
default_profile = "here"
[defaults]
log-format = "json"
[tail]
max-in-flight = 500
[profile.here]
lookupd-http-address = ["127.0.0.1:4161"]
"""


def pairs(nsqd: Nsqd, nsq: Nsq, n: int, scratch: Path) -> list[Pair]:
    """What is compared, in order."""
    lines, fewer = scratch / "lines", scratch / "fewer"
    for path, number in (lines, n), (fewer, n // 4):
        path.write_bytes((BODY + b"\n") * number)
    python, address = sys.executable, str(nsqd.tcp)
    consumed = ["--topic", "TOPIC", "--channel", "bench", "-n", str(n)]
    consumed += ["--nsqd-tcp-address", address]
    published = ["--topic", "benchpub#ephemeral", "--nsqd-tcp-address", address]
    tail = [python, "-m", "nsqtools", "tail", *consumed]
    pub = [python, "-m", "nsqtools", "pub", *published]
    to_nsq = [nsq.path("to_nsq"), *published]
    drain = [python, "-m", "tests.bench.drain"]
    click = Side("import click", lambda: measure([python, "-c", "import click"], 1))

    help_ = Side("nsqtools --help", lambda: measure([python, "-m", "nsqtools", "--help"], 1))
    file = scratch / "config.toml"
    file.write_text(FILE)

    def tab(line: str) -> Pair:
        env = {COMPLETE: "bash_complete", LINE: f"nsqtools {line}", "NSQTOOLS_CONFIG": str(file)}
        side = Side(f"{line}<TAB>", lambda: measure([python, "-m", "nsqtools"], 1, env=env))
        return Pair(side, click, rounds=7, slowest=SLOWEST_TAB)

    def consuming(name: str, argv: Sequence[str]) -> Side:
        return Side(name, lambda: consume(nsqd, n, argv))

    return [
        Pair(consuming("tail", tail), consuming("nsq_tail", [nsq.path("nsq_tail"), *consumed])),
        Pair(consuming("tail --snappy", [*tail, "--snappy"]), consuming("tail", tail)),
        Pair(
            Side("pub", lambda: measure(pub, n, stdin=lines)),
            Side("to_nsq", lambda: measure(to_nsq, n // 4, stdin=fewer)),
        ),
        Pair(
            consuming("Consumer", [*drain, "consumer", address, "TOPIC", str(n)]),
            consuming("raw socket", [*drain, "socket", address, "TOPIC", str(n)]),
        ),
        Pair(help_, click, rounds=7),
        tab("ta"),
        tab("tail --mo"),
        tab("tail --profile "),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("-n", type=int, default=300_000, help="messages of 200 bytes per run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="run what has this in its name")
    args = parser.parse_args()
    nsq = require_nsq()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Nsqd(Path(scratch, "nsqd"), "-mem-queue-size=10000000") as nsqd,
        Nginx(Path(scratch, "nginx")) as endpoint,
    ):
        print(f"{args.n:,} messages of {len(BODY)} bytes, medians of {args.rounds} rounds")
        lakes = Lakes(nsqd, nsq, args.n, scratch)
        every = [
            *pairs(nsqd, nsq, args.n, Path(scratch)),
            *archiving(nsqd, nsq, args.n, scratch),
            *delivering(nsqd, nsq, args.n, endpoint.url),
            *lakes.pairs(),
        ]
        wanted = [pair for pair in every if args.only in pair.ours.name]
        kept = [compare(pair, args.rounds) for pair in wanted]
        lakes.close()
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
