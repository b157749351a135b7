"""The commands of ``pipeline`` as processes, each with a Spark of its own."""

import os
import random
import re
import signal
from pathlib import Path

import pytest

from tests.support.authd import Authd
from tests.support.eventually import eventually
from tests.support.killing import Lake, Place, loses_nothing
from tests.support.metrics import scrape
from tests.support.process import Cli
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd, at, drained
from tests.support.spark import START, java_options, needs_spark
from tests.support.streaming import publish
from tests.support.tls import Certificates

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def lake(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path) -> Lake:
    place = Place(str(tmp_path / "lake"), str(tmp_path / "lake"))
    return Lake(nsqtools_cli, make_nsqd("-msg-timeout=2s"), topic, tmp_path, place)


@pytest.mark.full("an archive is killed again and again, and so are its Python workers")
def test_a_service_tells_what_it_does_and_ends_with_the_batch_when_told_to(lake: Lake) -> None:
    """And over a restart of nsqd."""
    process = lake.start("--trigger", "1s", "--metrics-address", ":0", "-v")
    (url,) = eventually(
        lambda: re.findall("metrics are at (.*)\n", lake.log.read_text()), timeout=START
    )
    lake.nsqd.kill()
    lake.nsqd.start()
    lake.publish(range(1000))

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
    lake.check(1000)
    said = lake.log.read_text()
    assert len(said.splitlines()) == said.count("nsqtools: ") > 2
    assert "Traceback" not in said


@pytest.mark.full("an archive is killed again and again, and so are its Python workers")
@pytest.mark.timeout(900)
def test_kill_9_at_any_moment_loses_nothing_and_doubles_nothing(
    lake: Lake, rng: random.Random
) -> None:
    loses_nothing(lake, rng, messages=16_000, workers=4, batch=2000)


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
    guarded.create(topic, "c")
    done = nsqtools_cli(
        *("pipeline", "archive", "--topic", topic, "--channel", "c", "--output", "lake"),
        *(*at(guarded), "--nsqd-http-address", str(guarded.http), "--spark-log", "spark.log"),
        env={"NSQTOOLS_AUTH_SECRET": secret},
    )
    assert done.code == 3
    assert done.stderr.startswith(f"nsqtools: {guarded.tcp}: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "spark.log").exists()


def test_a_topic_that_no_nsqd_has_is_an_error_and_is_not_created(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    needs_spark("what commands of the pipeline say before they start it")
    for more in ((), ("--check",)):
        done = nsqtools_cli(
            *("pipeline", "archive", "--topic", topic, "--channel", "c", "--output", "lake"),
            *(*at(nsqd), "--nsqd-http-address", str(nsqd.http), *more),
        )
        assert (done.code, topic in done.stderr) == (1, True)
    assert topic not in {each["topic_name"] for each in nsqd.stats()["topics"]}


@pytest.mark.full("a query with a Spark of its own")
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
        *(
            "--tls-v1",
            "--tls-root-ca-file",
            str(certificates.ca),
            "--snappy",
            "--master",
            "local[2]",
        ),
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
