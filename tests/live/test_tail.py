"""``tail`` as a process on real servers: pipes, signals, failures, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.process import COMMAND
from tests.support.servers import at, drained, empty

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd


def test_an_http_port_is_named_as_such(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    ended = nsqtools_cli("tail", "--topic", topic, "--nsqd-tcp-address", str(nsqd.http))
    assert ended.code != 0
    assert ended.stderr.startswith(f"nsqtools: {nsqd.http}: ")
    assert "HTTP" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_tail_leaves_as_soon_as_the_reader_of_its_pipe_has_gone(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    tail = nsqtools_cli.start(
        *("tail", "--topic", topic, "--channel", "c", *at(nsqd)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 1)
    assert tail.stdout
    tail.stdout.close()
    assert tail.wait(10) == -signal.SIGPIPE
    assert tail.stderr
    assert tail.stderr.read() == b""


def test_a_short_reader_leaves_the_unread_messages_to_others(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"%06d" % number + b"x" * 1000 for number in range(20_000)])
    command = " ".join([*COMMAND, "tail --topic", topic, "--channel c", *at(nsqd)])
    head = subprocess.run(
        ["bash", "-c", f'{command} | head -3; echo "${{PIPESTATUS[@]}}"'],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = head.stdout.splitlines()
    assert lines[-1] == "141 0"
    assert (len(lines), head.stderr) == (4, "")
    eventually(lambda: not nsqd.channel(topic, "c")["in_flight_count"])
    # What may have been finished is what a pipe holds beyond the three lines that were read.
    assert nsqd.channel(topic, "c")["depth"] > 17_000


def test_tail_n_10_head_3_and_tail_true(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"%d" % number for number in range(20)])
    command = " ".join([*COMMAND, "tail --topic", topic, "--channel c", *at(nsqd)])
    for line, lines in ((f"{command} -n 10 | head -3", 3), (f"{command} --channel d | true", 0)):
        ended = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=False)
        assert ended.stderr == b""
        assert len(ended.stdout.splitlines()) == lines


def test_count_is_exact_over_topics_and_everything_counted_is_finished(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    topics = [topic, f"{topic}.other"]
    for each in topics:
        nsqd.create(each, "c")
        nsqd.publish(each, [b"%d" % number for number in range(100)])
    both = [word for each in topics for word in ("--topic", each)]
    tailed = nsqtools_cli("tail", *both, "--channel", "c", "-n", "50", *at(nsqd))
    assert tailed.code == 0
    assert len(tailed.stdout.splitlines()) == 50
    eventually(lambda: sum(nsqd.channel(each, "c")["depth"] for each in topics) == 150)
    assert not any(nsqd.channel(each, "c")["in_flight_count"] for each in topics)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
def test_a_signal_drains_what_is_in_flight(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, number: signal.Signals, code: int
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"hello"] * 10)
    tail = nsqtools_cli.start(
        *("tail", "--topic", topic, "--channel", "c", *at(nsqd)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    eventually(lambda: drained(nsqd, topic, "c") and nsqd.channel(topic, "c")["message_count"])
    tail.send_signal(number)
    stdout, stderr = tail.communicate(timeout=20)
    assert (tail.returncode, stderr) == (code, b"")
    assert stdout == b"hello\n" * 10
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 0)


def test_a_signal_while_the_pipe_is_blocked_gives_the_messages_back(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x" * 10_000 for _ in range(1000)])
    tail = nsqtools_cli.start(
        *("tail", "--topic", topic, "--channel", "c", "--drain-timeout", "200ms", *at(nsqd)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    eventually(lambda: nsqd.channel(topic, "c")["in_flight_count"] > 100)
    tail.send_signal(signal.SIGTERM)
    assert tail.wait(20) == 0
    channel = nsqd.channel(topic, "c")
    assert channel["in_flight_count"] == 0
    assert channel["depth"] > 500


def test_tail_goes_on_when_nsqd_comes_back(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    tail = nsqtools_cli.start(
        *("tail", "--topic", topic, "--channel", "c", "-n", "20", *at(nsqd)),
        *("--consumer-opt", "reconnect_delay,100ms"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    eventually(lambda: nsqd.channel(topic, "c")["client_count"] == 1)
    nsqd.publish(topic, [b"before"] * 10)
    eventually(lambda: drained(nsqd, topic, "c"))
    nsqd.restart()
    nsqd.publish(topic, [b"after"] * 10)
    stdout, stderr = tail.communicate(timeout=30)
    assert tail.returncode == 0
    assert sorted(stdout.splitlines()) == [b"after"] * 10 + [b"before"] * 10
    assert b"Traceback" not in stderr
    assert b"connection lost" in stderr


def test_one_dead_nsqlookupd_is_a_warning(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    nsqd = make_nsqd(lookupds=[lookupd])
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"found"])
    eventually(lambda: lookupd.lookup(topic))
    lookupds = ("--lookupd-http-address", "127.0.0.1:1", "--lookupd-http-address")
    tailed = nsqtools_cli(
        "tail", "--topic", topic, "--channel", "c", "-n", "1", *lookupds, str(lookupd.http)
    )
    assert (tailed.code, tailed.stdout) == (0, b"found\n")
    assert "127.0.0.1:1" in tailed.stderr
    assert tailed.stderr.count("\n") == 1
    dead = nsqtools_cli("tail", "--topic", topic, "--lookupd-http-address", "127.0.0.1:1")
    assert dead.code == 3
    assert "Traceback" not in dead.stderr


def test_one_dead_nsqd_of_two_is_a_warning(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"found"])
    tailed = nsqtools_cli(
        *("tail", "--topic", topic, "--channel", "c", "-n", "1", *at(nsqd)),
        *("--nsqd-tcp-address", "127.0.0.1:1"),
    )
    assert (tailed.code, tailed.stdout) == (0, b"found\n")
    assert "127.0.0.1:1: connection refused" in tailed.stderr


def test_stop_conditions(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"] * 3)
    for condition in ["--idle-timeout=300ms"], ["--max-duration=1s"], empty(nsqd):
        tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", *condition, *at(nsqd))
        assert (tailed.code, tailed.stderr) == (0, "")
    assert drained(nsqd, topic, "c")


def test_until_empty_waits_for_deferred_messages_and_for_all_nsqds(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    lookupd = make_nsqlookupd()
    nsqds = [make_nsqd(lookupds=[lookupd]) for _ in range(2)]
    for nsqd in nsqds:
        nsqd.create(topic, "c")
    eventually(lambda: len(lookupd.lookup(topic)) == 2)
    nsqtools_cli("pub", "--topic", topic, "--defer", "2s", *at(nsqds[1]), "late")
    nsqds[0].publish(topic, [b"early"])
    tailed = nsqtools_cli(
        *("tail", "--topic", topic, "--channel", "c", "--until-empty"),
        *("--lookupd-http-address", str(lookupd.http)),
    )
    assert (tailed.code, tailed.stdout, tailed.stderr) == (0, b"early\nlate\n", "")


def test_until_empty_without_an_http_api_waits_for_silence(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"])
    tailed = nsqtools_cli(
        *("tail", "--topic", topic, "--channel", "c", "--until-empty", *at(nsqd)),
        *("--nsqd-http-address", "127.0.0.1:1", "--idle-timeout", "1s"),
    )
    assert (tailed.code, tailed.stdout) == (0, b"x\n")
    assert "cannot see the depth (127.0.0.1:1: " in tailed.stderr


def test_a_full_disk_is_one_line_and_status_1_and_nothing_is_finished(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"x"] * 3)
    with open("/dev/full", "wb") as full:
        tail = nsqtools_cli.start(
            *("tail", "--topic", topic, "--channel", "c", *at(nsqd)),
            stdout=full,
            stderr=subprocess.PIPE,
        )
        _, stderr = tail.communicate(timeout=20)
    assert tail.returncode == 1
    assert b"No space left" in stderr
    assert stderr.count(b"\n") == 1
    eventually(lambda: nsqd.channel(topic, "c")["depth"] == 3)


def test_a_given_up_message_is_named_and_makes_status_4(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-msg-timeout=1s")
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"poison"])
    with open("/dev/full", "wb") as full:
        tail = nsqtools_cli.start(
            "tail", "--topic", topic, "--channel", "c", *at(nsqd), stdout=full
        )
        assert tail.wait(20) == 1
    eventually(lambda: drained(nsqd, topic, "c") or nsqd.channel(topic, "c")["depth"] == 1)
    tailed = nsqtools_cli(
        *("tail", "--topic", topic, "--channel", "c", *at(nsqd)),
        *("--max-attempts", "1", "--idle-timeout", "1s"),
    )
    assert (tailed.code, tailed.stdout) == (4, b"")
    assert "1" in tailed.stderr
    assert drained(nsqd, topic, "c")


def test_control_bytes_never_reach_a_terminal(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"\x1b[31mred\x07"])
    leader, follower = os.openpty()
    tail = nsqtools_cli.start(
        "tail", "--topic", topic, "--channel", "c", "-n", "1", *at(nsqd), stdout=follower
    )
    os.close(follower)
    assert os.read(leader, 1000) == b"\\x1b[31mred\\x07\r\n"
    assert tail.wait(20) == 0
    os.close(leader)
