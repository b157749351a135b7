"""Pipelines and servers that want to be convinced: TLS, AUTH, snappy and nsqlookupd."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.servers import at, drained
from tests.support.spark import java_options, needs_spark

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.authd import Authd
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd
    from tests.support.tls import Certificates

pytestmark = pytest.mark.nsqd_only("a process of Spark takes seconds, and Spark cannot tell them")

QUERY = "SELECT CAST(body AS STRING), attempts, nsqd FROM nsq WHERE body <> X'32'"


@pytest.fixture
def guarded(
    make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, authd: Authd, certificates: Certificates
) -> Nsqd:
    authd.grant("open sesame", identity="ali")
    args = (*authd.nsqd_args(), *certificates.server.nsqd_args())
    return make_nsqd(*args, lookupds=[nsqlookupd])


@pytest.mark.parametrize(
    ("secret", "said"),
    [("barley", "nsqd refused the AUTH secret: E_AUTH_FAILED"), ("", "nsqd requires AUTH")],
)
def test_who_would_be_refused_is_told_so_before_spark_is_started(
    nsqtools_cli: Cli, guarded: Nsqd, topic: str, tmp_path: Path, secret: str, said: str
) -> None:
    needs_spark("what commands of the pipeline say before they start it")
    done = nsqtools_cli(
        *("pipeline", "archive", "--topic", topic, "--channel", "c", "--output", "lake"),
        *(*at(guarded), "--nsqd-http-address", str(guarded.http), "--spark-log", "spark.log"),
        env={"NSQTOOLS_AUTH_SECRET": secret},
    )
    assert done.code == 3
    assert done.stderr.startswith(f"nsqtools: {guarded.tcp}: {said}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "spark.log").exists()


def test_a_query_of_what_nsqlookupd_knows_is_printed_over_tls_with_a_secret_and_snappy(
    nsqtools_cli: Cli,
    guarded: Nsqd,
    nsqlookupd: Nsqlookupd,
    certificates: Certificates,
    topic: str,
) -> None:
    needs_spark("pipelines as processes")
    guarded.create(topic, "c")
    guarded.publish(topic, [b"1", b"2", b"a\tb\x1b"])
    eventually(lambda: guarded.channel(topic, "c")["message_count"] == 3)
    eventually(lambda: nsqlookupd.lookup(topic) == {guarded.tcp})
    done = nsqtools_cli(
        *("pipeline", "sql", "--topic", topic, "--channel", "c", "--query", QUERY),
        *("--lookupd-http-address", str(nsqlookupd.http)),
        *("--tls-root-ca-file", str(certificates.ca), "--snappy", "--master", "local[2]"),
        env={"NSQTOOLS_AUTH_SECRET": "open sesame", "JDK_JAVA_OPTIONS": java_options()},
        timeout=120,
    )
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.decode() == f"1\t1\t{guarded.tcp}\na\\tb\\x1b\t1\t{guarded.tcp}\n"
    assert drained(guarded, topic, "c")
