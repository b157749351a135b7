"""``pipeline archive`` as a process that is killed, with its workers, and what it has written."""

import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyarrow import fs

from tests.support.eventually import eventually
from tests.support.process import Cli, Result
from tests.support.servers import Nsqd, at, drained
from tests.support.spark import START, java_options, needs_spark
from tests.support.streaming import publish, rows
from tests.support.trees import connected, descendants, is_alive, kill_tree, signal_process


@dataclass(frozen=True, slots=True)
class Place:
    """A directory, by its URL, and for a reader who knows nothing of nsqtools or Spark.

    Commands need ``environment`` and the properties ``conf`` for it.
    """

    url: str
    path: str
    filesystem: fs.FileSystem = field(default_factory=fs.LocalFileSystem)
    environment: Mapping[str, str] = field(default_factory=dict)
    conf: Sequence[str] = ()

    def bodies(self) -> Counter[bytes]:
        """Those of all messages in its Parquet files."""
        return Counter(row["body"] for row in rows(self.path, self.filesystem))

    def beside(self, name: str) -> "Place":
        """A directory beside it."""
        url, path = (f"{each.rpartition('/')[0]}/{name}" for each in (self.url, self.path))
        return replace(self, url=url, path=path)

    def names(self, folder: str) -> set[str]:
        """The names in a directory below it."""
        selector = fs.FileSelector(f"{self.path}/{folder}")
        return {found.base_name for found in self.filesystem.get_file_info(selector)}


class Lake:
    """``pipeline archive`` of a topic, whose messages are numbers."""

    def __init__(self, cli: Cli, nsqd: Nsqd, topic: str, folder: Path, place: Place) -> None:
        needs_spark("pipelines as processes")
        self.cli, self.nsqd, self.topic, self.place = cli, nsqd, topic, place
        self.log, self.spark_log = folder / "log", folder / "s.log"
        self.config = folder / "c.toml"
        conf = ", ".join(f'"{each}"' for each in place.conf)
        self.config.write_text(
            f'[pipeline]\nmaster = "local[2]"\nspark-log = "{self.spark_log}"\nconf = [{conf}]\n'
            f'[profile.lake.pipeline.archive]\nchannel = "lake"\noutput = "{place.url}"\n'
        )
        nsqd.create(topic, "lake")

    @property
    def environment(self) -> dict[str, str]:
        return {"JDK_JAVA_OPTIONS": java_options(), **self.place.environment}

    def command(self, *options: str) -> tuple[str, ...]:
        """The ports of nsqd's two APIs have nothing to do with each other here."""
        return (
            *("pipeline", "archive", "--config", str(self.config), "--profile", "lake"),
            *("--topic", self.topic, *at(self.nsqd), "--nsqd-http-address", str(self.nsqd.http)),
            *options,
        )

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = self.command("--continuous", *options)
        with self.log.open("ab") as log:
            return self.cli.start(*command, env=self.environment, stderr=log)

    def drain(self, *options: str) -> Result:
        return self.cli(*self.command(*options), env=self.environment, timeout=START)

    def run(self, command: str, *options: str) -> Result:
        """Another command of ``pipeline``, with the configuration of this one."""
        given = ("pipeline", command, "--config", str(self.config), *options)
        return self.cli(*given, env=self.environment, timeout=START)

    def publish(self, numbers: range) -> None:
        publish(self.nsqd, self.topic, (b"%d" % each for each in numbers), channel="lake")

    def wait_for_depth(self, most: int) -> None:
        eventually(lambda: self.nsqd.channel(self.topic, "lake")["depth"] <= most, timeout=START)

    def check(self, published: int) -> None:
        """Each number is there once, and no batch is left undone."""
        found = Counter({int(body): count for body, count in self.place.bodies().items()})
        lost = sorted(set(range(published)) - set(found))
        twice = sorted(each for each, count in found.items() if count > 1)
        assert (len(lost), len(twice), found.total()) == (0, 0, published), (lost[:9], twice[:9])
        assert self.batches("offsets") == self.batches("commits")

    def batches(self, log: str) -> set[str]:
        """The batches in a log of Spark, which leaves other files there when it is killed."""
        return set(filter(str.isdecimal, self.place.names(f"_nsqtools/checkpoint/{log}")))


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


def kill_a_worker(process: subprocess.Popen[bytes], lake: Lake, looks: int, chosen: float) -> bool:
    """Kill a Python worker that is receiving, some looks after it is seen; whether one was.

    None may be any more: all is received. A batch may take any time before and after that.
    """
    victims: list[int] = []

    def is_over() -> bool:
        nonlocal looks
        victims[:] = connected(descendants(process.pid), lake.nsqd.tcp)
        looks -= bool(victims)
        return looks < 0 or drained(lake.nsqd, lake.topic, "lake")

    eventually(is_over, timeout=START)
    if not victims:
        return False
    signal_process(victims[int(chosen * len(victims))], signal.SIGKILL)
    return True


def loses_nothing(
    lake: Lake,
    rng: random.Random,
    *,
    messages: int,
    workers: int,
    batch: int,
    outages: Sequence[Callable[[], None]] = (),
) -> None:
    """Archive ``messages`` while processes are killed, and check that each is there once.

    Killed are the first of two archives and ``workers`` Python workers, at moments drawn by chance.
    The outages happen at such moments too.
    """
    steps = ("--trigger", "0s", "--max-per-trigger", str(batch), "--max-in-flight", str(batch // 5))
    due = list(outages)
    killed = 0
    for share in (range(messages // 2), range(messages // 2, messages)):
        process = lake.start(*steps)
        lake.publish(share)
        is_last = share.stop == messages
        wanted = workers - killed if is_last else -(-workers // 2)
        events: list[Callable[[], None] | None] = [None] * wanted
        if due:
            events.append(due.pop())
            rng.shuffle(events)
        moments = rng.sample(range(len(share) // 4, len(share)), len(events))
        for left, event in zip(sorted(moments, reverse=True), events, strict=True):
            lake.wait_for_depth(left)
            if event:
                event()
            else:
                killed += kill_a_worker(process, lake, rng.randrange(8), rng.random())
        if not is_last:
            lake.wait_for_depth(rng.randrange(len(share) // 4))
            kill(process, alone=True)
    published = messages
    while killed < workers // 2:  # some moments were over too soon
        more = range(published, published + messages // 6)
        lake.publish(more)
        published = more.stop
        killed += kill_a_worker(process, lake, 0, rng.random())
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(START) == 0

    def all_taken() -> bool:
        done = lake.drain()
        assert (done.code, done.stderr) == (0, "")
        return drained(lake.nsqd, lake.topic, "lake")

    eventually(all_taken, timeout=START)  # what was in flight comes again
    lake.check(published)
    assert not due
