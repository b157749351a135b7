"""``pub`` as a process on real servers: input, refusals, failures, exit codes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.support.eventually import eventually
from tests.support.servers import at, empty

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd


def test_the_last_record_without_delimiter_is_whole_and_empty_ones_are_skipped(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    assert nsqtools_cli("pub", "--topic", topic, *at(nsqd), stdin=b"one\n\ntwo\nthree").code == 0
    tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", *empty(nsqd))
    assert sorted(tailed.stdout.split()) == [b"one", b"three", b"two"]


def test_an_oversized_message_is_refused_alone_with_status_4(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-max-msg-size=1000")
    nsqd.create(topic, "c")
    lines = [b"%d" % number for number in range(500)]
    lines[250] = b"x" * 5000  # nsqd says so, and closes the connection
    published = nsqtools_cli("pub", "--topic", topic, *at(nsqd), stdin=b"\n".join(lines))
    assert published.code == 4
    assert "1 of 500 messages were not published" in published.stderr
    assert "E_BAD_MESSAGE" in published.stderr
    assert nsqd.topic(topic)["message_count"] == 499


def test_pub_waits_for_an_nsqd_that_restarts_and_loses_nothing(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    pub = nsqtools_cli.start(
        *("pub", "--topic", topic, *at(nsqd)), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert pub.stdin
    pub.stdin.write(b"first\n")
    pub.stdin.flush()
    eventually(lambda: nsqd.topic(topic)["message_count"] == 1)
    nsqd.stop()
    pub.stdin.write(b"second\n" * 100)
    pub.stdin.flush()
    nsqd.start()
    _, stderr = pub.communicate(timeout=30)
    assert pub.returncode == 0, stderr
    tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", *empty(nsqd))
    assert tailed.stdout.count(b"second") >= 100
    assert tailed.stdout.count(b"first") == 1


def test_a_line_of_a_slow_producer_is_published_at_once(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    pub = nsqtools_cli.start("pub", "--topic", topic, *at(nsqd), stdin=subprocess.PIPE)
    assert pub.stdin
    for number in range(1, 4):
        pub.stdin.write(b"line\n")
        pub.stdin.flush()
        eventually(lambda number=number: nsqd.topic(topic)["message_count"] == number)  # type: ignore[misc]
    pub.stdin.close()
    assert pub.wait(10) == 0


def test_tee_copies_and_defer_defers(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    published = nsqtools_cli(
        "pub", "--topic", topic, "--tee", "--defer", "1h", *at(nsqd), stdin=b"a\nb\n"
    )
    assert (published.code, published.stdout) == (0, b"a\nb\n")
    eventually(lambda: nsqd.channel(topic, "c")["deferred_count"] == 2)


def test_mode_all_copies_to_each_nsqd(nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str) -> None:
    nsqds = [make_nsqd(), make_nsqd()]
    addresses = [word for nsqd in nsqds for word in at(nsqd)]
    published = nsqtools_cli("pub", "--topic", topic, "--mode", "all", *addresses, "one", "two")
    assert published.code == 0
    assert [nsqd.topic(topic)["message_count"] for nsqd in nsqds] == [2, 2]


def test_keep_empty_is_a_clear_error(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    ended = nsqtools_cli("pub", "--topic", topic, "--keep-empty", *at(nsqd), stdin=b"a\n\nb\n")
    assert ended.code == 1
    assert "message 2 is empty" in ended.stderr
