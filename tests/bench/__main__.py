"""Starts a real nsqd and prints how nsqtools compares with the Go tools, as ratios.

Each pair runs in turn, A B A B, so that a machine that slows down slows both. Ratios are medians.
A TAB press that takes longer than its bound makes the exit status 1.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nsqtools.cli.complete import LINE
from nsqtools.cli.exits import COMPLETE
from tests.bench.measuring import BODY, Pair, Run, Side, compare, drain, filled, measure
from tests.support.binaries import require_nsq
from tests.support.nginx import Nginx
from tests.support.servers import Nsqd, at

OURS = [sys.executable, "-m", "nsqtools"]
SLOWEST_TAB = 1.6  # of the time to start Python and import click
FILE = 'default_profile = "here"\n[tail]\nmax-in-flight = 500\n[profile.here]\nsnappy = true\n'


def events(number: int) -> list[bytes]:
    """JSON objects of 200 bytes, which compress about as well as logs do."""
    rng = random.Random(1)
    found = []
    for each in range(number):
        user, path, *ip = (rng.randrange(most) for most in (10**6, 1000, *[256] * 4))
        event = {"id": each, "user": user, "path": f"/{rng.choice('abcdefgh')}/{path}"}
        event |= {"ip": ".".join(map(str, ip)), "agent": "Mozilla/5.0", "seconds": rng.random()}
        found.append(json.dumps(event).ljust(200)[:200].encode())
    return found


class Benches:
    """What is compared, in order."""

    def __init__(self, nsqd: Nsqd, n: int, endpoint: str, scratch: Path) -> None:
        self._nsqd, self._n, self._endpoint, self._scratch = nsqd, n, endpoint, scratch
        self._go = require_nsq().path

    def pairs(self) -> list[Pair]:
        return [*self._lines(), *self._starts(), *self._archiving(), *self._delivering()]

    def _lines(self) -> Iterator[Pair]:
        """``tail`` and ``pub``."""

        def consuming(name: str, *argv: str) -> Side:
            def run() -> Run:
                with filled(self._nsqd, self._n) as topic:
                    words = [*argv, "--topic", topic, "--channel", "bench", "-n", str(self._n)]
                    return measure([*words, *at(self._nsqd)], self._n, to_pipe=True)

            return Side(name, run)

        def publishing(name: str, messages: int, *argv: str) -> Side:
            def run() -> Run:
                file = self._scratch / "lines"
                file.write_bytes((BODY + b"\n") * messages)
                words = [*argv, "--topic", "benchpub#ephemeral", *at(self._nsqd)]
                return measure(words, messages, stdin=file)

            return Side(name, run)

        tail = consuming("tail", *OURS, "tail")
        yield Pair(tail, consuming("nsq_tail", self._go("nsq_tail")))
        yield Pair(consuming("tail --snappy", *OURS, "tail", "--snappy"), tail)
        fewer = self._n // 4
        to_nsq = publishing("to_nsq", fewer, self._go("to_nsq"))
        yield Pair(publishing("pub", self._n, *OURS, "pub"), to_nsq)

    def _starts(self) -> Iterator[Pair]:
        """Help, and TAB presses, beside a Python that imports click."""
        click = Side("import click", lambda: measure([sys.executable, "-c", "import click"], 1))
        yield Pair(Side("nsqtools --help", lambda: measure([*OURS, "--help"], 1)), click, rounds=7)
        file = self._scratch / "config.toml"
        file.write_text(FILE)

        def tab(line: str) -> Side:
            known = {COMPLETE: "bash_complete", "NSQTOOLS_CONFIG": str(file)}
            env = {**known, LINE: f"nsqtools {line}"}
            return Side(f"{line}<TAB>", lambda: measure(OURS, 1, env=env))

        for line in ("ta", "tail --mo", "tail --profile "):
            yield Pair(tab(line), click, rounds=7, slowest=SLOWEST_TAB)

    def _archiving(self) -> Iterator[Pair]:
        """With fsync on, until nsqd has nothing left to send."""
        folder, bodies = self._scratch / "archive", events(10_000)
        # nsq_to_file wants <REV> for gzip.
        common = ["--filename-format", "<TOPIC><REV>.<DATETIME>.log", "--output-dir", str(folder)]

        def side(name: str, *argv: str) -> Side:
            def run() -> Run:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                return drain(self._nsqd, self._n, [*argv, *common], bodies=bodies)

            return Side(name, run)

        ours, theirs = [*OURS, "to-file"], self._go("nsq_to_file")
        wide = ["--max-in-flight", "2500"]
        go_gzip = side("nsq_to_file --gzip", theirs, "--gzip")
        yield Pair(side("to-file", *ours), side("nsq_to_file", theirs))
        go_wide = side("nsq_to_file, same", theirs, *wide)
        yield Pair(side("to-file --max-in-flight 2500", *ours, *wide), go_wide)
        yield Pair(side("to-file --gzip", *ours, "--gzip"), go_gzip)
        yield Pair(side("to-file --compress zstd", *ours, "--compress", "zstd"), go_gzip)

    def _delivering(self) -> Iterator[Pair]:
        """Until nsqd has heard of every message.

        A request for each message takes nsq_to_http so long that it gets a third of the messages.
        """

        def side(name: str, messages: int, *argv: str) -> Side:
            body = b'{"x": "%b"}' % (b"x" * 191)
            return Side(
                name, lambda: drain(self._nsqd, messages, argv, bodies=[body], settled=True)
            )

        post = ["--post", self._endpoint, "-n", "100"]
        goal = ["--destination-topic", "benchrelay#ephemeral"]
        goal += ["--destination-nsqd-tcp-address", str(self._nsqd.tcp)]
        fewer = self._n // 3
        go_http = side("nsq_to_http -n 100", fewer, self._go("nsq_to_http"), *post)
        yield Pair(side("to-http -n 100", self._n, *OURS, "to-http", *post), go_http)
        two = [*OURS, "to-http", *post, "--workers", "2"]
        yield Pair(side("to-http -n 100 --workers 2", self._n, *two), go_http)
        batches = [*OURS, "to-http", *post, "--batch", "100"]
        yield Pair(side("to-http --batch 100", self._n, *batches), go_http)
        nsq_to_nsq = side("nsq_to_nsq", self._n // 4, self._go("nsq_to_nsq"), *goal)
        yield Pair(side("relay", self._n, *OURS, "relay", *goal), nsq_to_nsq)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("-n", type=int, default=300_000, help="messages of 200 bytes per run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="run what has this in its name")
    args = parser.parse_args()
    require_nsq()
    with (
        tempfile.TemporaryDirectory() as scratch,
        Nsqd(Path(scratch, "nsqd"), "-mem-queue-size=10000000") as nsqd,
        Nginx(Path(scratch, "nginx")) as nginx,
    ):
        print(f"{args.n:,} messages of {len(BODY)} bytes, medians of {args.rounds} rounds")
        pairs = Benches(nsqd, args.n, nginx.url, Path(scratch)).pairs()
        wanted = [pair for pair in pairs if args.only in pair.ours.name]
        kept = [compare(pair, args.rounds) for pair in wanted]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
