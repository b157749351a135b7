"""The commands of ``pipeline`` as processes, each with a Spark of its own."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.archives import shares
from tests.support.eventually import eventually
from tests.support.metrics import scrape
from tests.support.servers import at, drained
from tests.support.spark import START, java_options, needs_spark
from tests.support.streaming import publish, rows
from tests.support.trees import connected, descendants, is_alive, kill_tree, signal_process

if TYPE_CHECKING:
    import random
    import subprocess
    from pathlib import Path

    from tests.support.authd import Authd
    from tests.support.process import Cli, Result
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
    from tests.support.tls import Certificates

pytestmark = pytest.mark.timeout(600)


class Lake:
    """``pipeline archive`` of a topic, whose messages are numbers."""

    def __init__(self, cli: Cli, nsqd: Nsqd, topic: str, folder: Path) -> None:
        needs_spark("pipelines as processes")
        self.cli, self.nsqd, self.topic = cli, nsqd, topic
        self.output, self.log, self.spark_log = folder / "lake", folder / "log", folder / "s.log"
        self.config = folder / "c.toml"
        self.config.write_text(
            f'[pipeline]\nmaster = "local[2]"\nspark-log = "{self.spark_log}"\n'
            f'[profile.lake.pipeline.archive]\nchannel = "lake"\noutput = "{self.output}"\n'
        )
        nsqd.create(topic, "lake")

    def command(self, *options: str) -> tuple[str, ...]:
        """The ports of nsqd's two APIs have nothing to do with each other here."""
        return (
            *("pipeline", "archive", "--config", str(self.config), "--profile", "lake"),
            *("--topic", self.topic, *at(self.nsqd), "--nsqd-http-address", str(self.nsqd.http)),
            *options,
        )

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        env = {"JDK_JAVA_OPTIONS": java_options()}
        with self.log.open("ab") as log:
            return self.cli.start(*self.command("--continuous", *options), env=env, stderr=log)

    def drain(self) -> Result:
        env = {"JDK_JAVA_OPTIONS": java_options()}
        return self.cli(*self.command(), env=env, timeout=START)

    def publish(self, numbers: range) -> None:
        publish(self.nsqd, self.topic, (b"%d" % each for each in numbers), channel="lake")

    def wait_for_depth(self, most: int) -> None:
        eventually(lambda: self.nsqd.channel(self.topic, "lake")["depth"] <= most, timeout=START)

    def check(self, published: int) -> None:
        """Each number is there once, for a reader who knows nothing of Spark."""
        found = Counter(int(row["body"]) for row in rows(self.output))
        lost = sorted(set(range(published)) - set(found))
        twice = sorted(each for each, count in found.items() if count > 1)
        assert (len(lost), len(twice), found.total()) == (0, 0, published), (lost[:9], twice[:9])
        planned, done = (
            {each.name for each in (self.output / "_nsqtools/checkpoint" / name).iterdir()}
            for name in ("offsets", "commits")
        )
        assert planned == done


@pytest.fixture
def lake(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Lake:
    return Lake(nsqtools_cli, make_nsqd("-msg-timeout=2s"), topic, tmp_path)


def kill(process: subprocess.Popen[bytes], *, alone: bool) -> None:
    """Kill all its processes at once, or the driver ``alone``: the others then end."""
    below = descendants(process.pid)
    assert len(below) > 1
    assert process.poll() is None
    if alone:
        process.kill()
    else:
        kill_tree(process.pid)
    process.wait()
    eventually(lambda: not any(map(is_alive, below)))


def test_a_service_that_was_killed_goes_on_and_ends_with_the_batch_when_told_to(lake: Lake) -> None:
    lake.publish(range(3000))
    process = lake.start("--trigger", "0s", "--max-per-trigger", "500")
    lake.wait_for_depth(2000)
    kill(process, alone=False)

    process = lake.start("--trigger", "100ms", "--metrics-address", ":0", "-v")
    (url,) = eventually(
        lambda: re.findall("metrics are at (.*)\n", lake.log.read_text()), timeout=START
    )
    eventually(lambda: drained(lake.nsqd, lake.topic, "lake"), timeout=START)
    lake.nsqd.kill()
    lake.nsqd.start()
    lake.publish(range(3000, 4000))

    def written() -> bool:
        known = scrape(url)
        assert known[("nsqtools_pipeline_lag_seconds",)] > 0
        assert known[("nsqtools_pipeline_batch_seconds",)] > 0
        assert known[("nsqtools_pipeline_written_total",)] >= 1000
        return known[("nsqtools_pipeline_backlog",)] == 0

    eventually(lambda: drained(lake.nsqd, lake.topic, "lake"), timeout=START)
    eventually(written, timeout=START)
    os.killpg(process.pid, signal.SIGTERM)  # as timeout(1) does, or a shell that ends
    assert process.wait(START) == 0
    lake.check(4000)
    said = lake.log.read_text()
    assert len(said.splitlines()) == said.count("nsqtools: ") > 2
    assert "Traceback" not in said


def kill_a_worker(process: subprocess.Popen[bytes], lake: Lake, looks: int, chosen: float) -> bool:
    """Kill a Python worker that is receiving, some looks after it is seen; whether one was."""

    def receiving() -> list[int]:
        nonlocal looks
        found = connected(descendants(process.pid), lake.nsqd.tcp)
        looks -= bool(found)
        return found if looks < 0 else []

    try:
        victims = eventually(receiving, timeout=5)
    except AssertionError:  # all was received meanwhile
        return False
    signal_process(victims[int(chosen * len(victims))], signal.SIGKILL)
    return True


@pytest.mark.full("an archive is killed again and again, and so are its Python workers")
@pytest.mark.timeout(900)
def test_kill_9_at_any_moment_loses_nothing_and_doubles_nothing(
    lake: Lake, rng: random.Random
) -> None:
    messages, trees, workers = 100_000, 4, 10
    steps = ("--trigger", "0s", "--max-per-trigger", "5000", "--max-in-flight", "1000")
    killed = 0
    for number, share in enumerate(shares(messages, trees + 1)):
        process = lake.start(*steps)
        lake.publish(share)
        wanted = -(-(workers - killed) // (trees + 1 - number))
        for left in sorted(rng.sample(range(len(share) // 4, len(share)), wanted), reverse=True):
            lake.wait_for_depth(left)
            killed += kill_a_worker(process, lake, rng.randrange(8), rng.random())
        if number < trees:
            lake.wait_for_depth(rng.randrange(len(share) // 4))
            kill(process, alone=not number)
    published = messages
    while killed < workers // 2 and published < 2 * messages:  # some moments were over too soon
        more = range(published, published + messages // 6)
        lake.publish(more)
        published = more.stop
        killed += kill_a_worker(process, lake, rng.randrange(8), rng.random())
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(START) == 0

    def all_taken() -> bool:
        done = lake.drain()
        assert (done.code, done.stderr) == (0, "")
        return drained(lake.nsqd, lake.topic, "lake")

    eventually(all_taken, timeout=START)  # what was in flight comes again
    lake.check(published)
    assert killed >= workers // 2


@pytest.fixture
def guarded(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, authd: Authd, certificates: Certificates
) -> Nsqd:
    authd.grant("open sesame", identity="ali")
    args = (*authd.nsqd_args(), *certificates.server.nsqd_args())
    return make_nsqd(*args, lookupds=[nsqlookupd])


@pytest.mark.parametrize("secret", ["barley", ""])
def test_who_would_be_refused_is_told_so_before_spark_is_started(
    nsqtools_cli: Cli, guarded: Nsqd, topic: str, tmp_path: Path, secret: str
) -> None:
    needs_spark("what commands of the pipeline say before they start it")
    done = nsqtools_cli(
        *("pipeline", "archive", "--topic", topic, "--channel", "c", "--output", "lake"),
        *(*at(guarded), "--nsqd-http-address", str(guarded.http), "--spark-log", "spark.log"),
        env={"NSQTOOLS_AUTH_SECRET": secret},
    )
    assert done.code == 3
    assert done.stderr.startswith(f"nsqtools: {guarded.tcp}: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "spark.log").exists()


def test_a_query_of_what_nsqlookupd_knows_is_printed_over_tls_with_a_secret_and_snappy(
    nsqtools_cli: Cli,
    guarded: Nsqd,
    nsqlookupd: Nsqlookupd,
    certificates: Certificates,
    topic: str,
    tmp_path: Path,
) -> None:
    needs_spark("pipelines as processes")
    other = tmp_path / "python3"  # which Spark would take by itself
    other.write_text("#!/bin/sh\nexit 9\n")
    other.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    publish(guarded, topic, [b"1", b"2", b"a\tb\x1b"])
    eventually(lambda: nsqlookupd.lookup(topic) == {guarded.tcp})
    query = "SELECT CAST(body AS STRING), attempts, nsqd FROM nsq WHERE body <> X'32'"
    done = nsqtools_cli(
        *("pipeline", "sql", "--topic", topic, "--channel", "c", "--query", query),
        *("--lookupd-http-address", str(nsqlookupd.http)),
        *("--tls-root-ca-file", str(certificates.ca), "--snappy", "--master", "local[2]"),
        env={
            "NSQTOOLS_AUTH_SECRET": "open sesame",
            "JDK_JAVA_OPTIONS": java_options(),
            "PATH": path,
        },
        timeout=START,
    )
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.decode() == f"1\t1\t{guarded.tcp}\na\\tb\\x1b\t1\t{guarded.tcp}\n"
    assert drained(guarded, topic, "c")
