"""The pipeline on a real cluster: the package comes with the driver, and executors get killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import nsqtools
from nsqtools.cli.docs import sections
from tests.support.cluster import Cluster
from tests.support.eventually import eventually
from tests.support.examples import shown
from tests.support.replays import Taken
from tests.support.servers import at, drained
from tests.support.spark import START, needs_spark, submit, with_plugin
from tests.support.streaming import numbered, publish, rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd

MESSAGES = 12_000


@pytest.mark.full("a cluster whose executors are killed")
@pytest.mark.timeout(900)
def test_archive_sql_and_replay_run_on_a_cluster_and_lose_nothing_with_its_executors(
    make_nsqd: MakeNsqd, nsqtools_cli: Cli, topic: str, tmp_path: Path
) -> None:
    # size: one cluster, which takes long to start, serves all
    needs_spark("clusters of Spark")
    nsqd = make_nsqd("-msg-timeout=2s")
    bodies = Counter(numbered(MESSAGES))
    publish(nsqd, topic, bodies)
    log, lake = tmp_path / "log", tmp_path / "lake"

    def start(*command: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as stderr:
            given = ("pipeline", *command, *at(nsqd), *cluster.options())
            return nsqtools_cli.start(*given, stderr=stderr)

    def end(process: subprocess.Popen[bytes], code: int = 0) -> str:
        assert process.wait(START) == code, log.read_text()
        return log.read_text()

    def newest_staged() -> int:
        """The number of the last batch of which something was received."""
        found = lake.glob("_nsqtools/staging/*/b*/p*/[0-9]*")
        claimed = {path.parts[-3] for path in found if int(path.name)}
        return max((int(name[1:]) for name in claimed), default=-1)

    with Cluster(tmp_path / "spark") as cluster:
        subscribed = ("--topic", topic, "--channel", "c", "--nsqd-http-address", str(nsqd.http))
        service = ("--continuous", "--trigger", "0s", "--max-per-trigger", "3000")
        archive = start("archive", *subscribed, *service, "--output", str(lake))
        for batch in (1, 3):
            eventually(lambda: newest_staged() >= batch, START)  # noqa: B023 - called here
            cluster.kill_executor()
        eventually(lambda: drained(nsqd, topic, "c"), START)
        os.kill(archive.pid, signal.SIGTERM)
        assert "Traceback" not in end(archive)
        assert Counter(row["body"] for row in rows(lake)) == bodies

        query = "select body from nsq distribute by message_id"
        sql = ("sql", "--input", str(lake), "--query", query, "--destination-topic", f"{topic}.sql")
        assert "lacks snappy" in end(start(*sql, "--snappy"), code=2)
        publishing = start(*sql)
        eventually(lambda: nsqd.topic(f"{topic}.sql")["message_count"], START)
        cluster.kill_executor()
        end(publishing)
        assert set(Taken(nsqtools_cli, nsqd, f"{topic}.sql")()) == set(bodies)  # at least once

        chosen = ("--where", "attempts > 0")
        replay = ("replay", "--input", str(lake), "--topic", f"{topic}.replay", *chosen)
        program = Path(nsqtools.__file__).with_name("__main__.py")
        submitted = [*submit(), *cluster.options(), program, "pipeline", *replay, *at(nsqd)]
        assert run(submitted, tmp_path, os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}) == 0
        assert Counter(Taken(nsqtools_cli, nsqd, f"{topic}.replay")()) == bodies

        nsqd.create(topic, "program")
        nsqd.publish(topic, [b"one", b"two"])
        blocks = shown(sections("nsqtools-pipeline.7", "guides")["PYSPARK"])
        (text,) = [block for block in blocks if "readStream" in block]
        source = f'"nsqd.tcp.addresses", "{nsqd.tcp}/{nsqd.http.port}"'
        for written, real in (
            ('"nsqlookupd.http.addresses", "lookup1:4161"', source),
            ('"lake")', '"program")'),
            ('"events")', f'"{topic}")'),
            ("/nfs/lake", str(tmp_path)),
        ):
            assert written in text
            text = text.replace(written, real)
        (tmp_path / "program.py").write_text(text)
        submitted = [*submit(), *cluster.options(sys.executable), "program.py"]
        assert run(submitted, tmp_path, with_plugin(tmp_path / "site")) == 0
        found = pq.read_table(tmp_path / "events", columns=["body"])["body"].to_pylist()
        assert sorted(found) == ["one", "two"]


def run(command: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> int:
    """Its exit code."""
    with (folder / "submitted").open("ab") as log:
        done = subprocess.run(
            command, cwd=folder, env=env, stdout=log, stderr=log, timeout=START, check=False
        )
    return done.returncode
