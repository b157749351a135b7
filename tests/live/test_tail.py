"""``tail`` as a process on real servers: pipes, signals, failures, exit codes, and ``--peek``."""

import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.consuming import Consuming, make_known
from tests.support.eventually import eventually
from tests.support.process import COMMAND, Cli, Terminal, neutral
from tests.support.raw import Raw
from tests.support.servers import (
    MakeNsqd,
    Nsqd,
    Nsqlookupd,
    at,
    at_both,
    empty,
    http,
    lookup,
    registered,
)

PIPE = subprocess.PIPE
DEAD = "127.0.0.1:1"
SOON = 10.0
"""Seconds; a handshake, or a request to nsqlookupd, that hangs takes 20 or more."""


@dataclass(frozen=True, slots=True)
class Tail(Consuming):
    """``tail`` of a topic of its own."""

    name = "tail"

    def state(self) -> tuple[int, ...]:
        """Depth, in flight, deferred, requeued and timed out of the channel."""
        found = self.channel()
        held = (found["depth"], found["in_flight_count"], found["deferred_count"])
        return (*held, found["requeue_count"], found["timeout_count"])


@pytest.fixture
def tail(nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path) -> Tail:
    made = Tail(nsqtools_cli, nsqd, topic, tmp_path)
    made.create()
    return made


def test_a_short_reader_leaves_the_unread_messages_to_others(tail: Tail) -> None:
    tail.publish([b"%06d" % number + b"x" * 1000 for number in range(20_000)])
    command = " ".join([*COMMAND, *tail.command(), *at(tail.nsqd)])
    for line, printed in (
        (f'{command} | head -3; echo "${{PIPESTATUS[@]}}"', 4),
        (f"{command} -n 10 | head -3", 3),
        (f"{command} -n 10 --channel d | true", 0),
    ):
        ended = subprocess.run(
            ["bash", "-c", line], env=neutral(), capture_output=True, timeout=60, check=False
        )
        assert ended.stderr == b""
        lines = ended.stdout.splitlines()
        assert len(lines) == printed
        assert printed < 4 or lines[-1] == b"141 0"
        # nsqd got back what was in flight, once: it sent nothing again meanwhile.
        assert tail.state()[3] < 2 * 2500
    # Finished is what the pipe holds beyond the three lines that were read.
    assert tail.depth() > 17_000


def test_a_signal_drains_what_is_in_flight(tail: Tail) -> None:
    tail.publish([b"hello"] * 10)
    running = tail.start(stdout=PIPE)
    running.drain()
    assert (running.end(signal.SIGINT), running.said) == (130, "")
    assert running.process.stdout
    assert running.process.stdout.read() == b"hello\n" * 10
    eventually(lambda: tail.channel()["client_count"] == 0)


def test_a_dead_server_is_named_and_the_living_one_beside_it_is_consumed(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    """But nobody knows whether the dead one is empty."""
    nsqd = make_nsqd(lookupds=[nsqlookupd])
    nsqd.create(topic, "c")
    registered(topic, [nsqlookupd])
    tail = ("tail", "--topic", topic, "--channel", "c")
    for place, asked_for_messages, asked_whether_empty in (
        (lookup([nsqlookupd]), "--lookupd-http-address", "--lookupd-http-address"),
        ([*at_both(nsqd)], "--nsqd-tcp-address", "--nsqd-http-address"),
    ):
        nsqd.publish(topic, [b"x", b"x"])
        tailed = nsqtools_cli(*tail, *place, "-n", "1", asked_for_messages, DEAD)
        assert (tailed.code, tailed.stdout) == (0, b"x\n")
        assert tailed.stderr.count(f"{DEAD}: ") == tailed.stderr.count("\n") == 1
        until_empty = ("--until-empty", "--max-duration", "2s", asked_whether_empty, DEAD)
        tailed = nsqtools_cli(*tail, *place, *until_empty)
        assert (tailed.code, tailed.stdout) == (4, b"x\n")
        assert f"{DEAD}: " in tailed.stderr


def test_a_service_waits_for_its_first_server_and_says_so_once_and_a_job_does_not(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str, tmp_path: Path
) -> None:
    """nsqlookupd, nsqd, or the destination of relay."""
    nsqd, goal = make_nsqd(lookupds=[nsqlookupd]), make_nsqd()
    nsqd.create(topic, "c")
    registered(topic, [nsqlookupd])
    nsqd.publish(topic, [b"x"] * 3)
    consumed = ("--topic", topic, "--channel", "c")
    relay = ("--destination-nsqd-tcp-address", str(goal.tcp), "--destination-topic", "copy")
    for missing, words in (
        (nsqlookupd, ("tail", *consumed, *lookup([nsqlookupd]))),
        (nsqd, ("tail", *consumed, *at(nsqd))),
        (goal, ("relay", *consumed, *at(nsqd), *relay)),
    ):
        missing.stop()
        with (tmp_path / "log").open("w+b") as log:
            process = nsqtools_cli.start(*words, stdout=log, stderr=log)
            eventually(lambda: b"waiting until" in (tmp_path / "log").read_bytes())
            missing.start()
            if missing is nsqlookupd:
                nsqd.restart()  # or it notices nsqlookupd only 15 s later
            nsqd.create(topic, "c")
            eventually(lambda: nsqd.channel(topic, "c")["client_count"])
            process.terminate()
            assert process.wait(SOON) == 0
        assert (tmp_path / "log").read_bytes().count(b"waiting until") == 1
        missing.stop()
        job = nsqtools_cli(*words, "--max-duration", "60s")
        assert (job.code, job.stderr.count("\n")) == (3, 1), job.stderr
        missing.start()


def test_until_empty_waits_for_deferred_messages_and_for_all_nsqds(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    nsqds = [make_nsqd(lookupds=[nsqlookupd]) for _ in range(2)]
    for nsqd in nsqds:
        make_known(nsqd, topic)
    registered(topic, [nsqlookupd], 2)
    nsqtools_cli("pub", "--topic", topic, "--defer", "1500ms", *at(nsqds[1]), "late")
    nsqds[0].publish(topic, [b"early"])
    tail = ("tail", "--topic", topic, "--channel", "c", *lookup([nsqlookupd]))
    for condition, printed in (
        ("--until-empty", b"early\nlate\n"),
        ("--idle-timeout=100ms", b""),
        ("--max-duration=100ms", b""),
    ):
        tailed = nsqtools_cli(*tail, condition)
        assert (tailed.code, tailed.stdout, tailed.stderr) == (0, printed, "")


def test_a_terminal_gets_no_control_bytes_and_shows_what_until_empty_waits_for(tail: Tail) -> None:
    tail.make_known()
    tail.cli("pub", "--topic", tail.topic, "--defer", "1h", *at(tail.nsqd), "late")
    tail.publish([b"\x1b[31mred\x07"])
    with Terminal(tail.cli, *tail.command(*empty(tail.nsqd))) as terminal:
        terminal.until("\\x1b[31mred\\x07\r\n")
        terminal.until("1 deferred")
        terminal.process.terminate()
        assert terminal.end() == 0


def test_a_peek_shows_so_many_and_gives_them_back_and_touches_no_other(tail: Tail) -> None:
    """Not what is deferred, with another consumer, or in a paused channel."""
    tail.publish([b"%d" % number for number in range(102)])
    peek = ("--peek", *at(tail.nsqd))
    with Raw(tail.nsqd.tcp) as other:
        other.identify()
        other.subscribe(tail.topic, "c", ready=2)
        later, _ = other.message(), other.message()
        other.send("RDY 0")
        other.send(f"REQ {later.id} 600000")
        eventually(lambda: tail.state() == (100, 1, 1, 1, 0))
        ended = tail.cli(*tail.command(*peek, "-n", "5", "--max-attempts", "1"))
        assert (ended.code, len(set(ended.stdout.split()))) == (0, 5)
        assert "5 messages given back" in ended.stderr
        after = (100, 1, 1, 6, 0)
        eventually(lambda: tail.state() == after)
        ended = tail.cli(*tail.command(*peek, "-n", "100", "--max-attempts", "1"))
        assert (ended.code, len(set(ended.stdout.split()))) == (0, 100)
        after = (100, 1, 1, 106, 0)
        eventually(lambda: tail.state() == after)
        tail.nsqd.pause(tail.topic, "c")
        ended = tail.cli(*tail.command(*peek, "-n", "9", "--idle-timeout", "300ms"))
        assert (ended.code, ended.stdout, tail.state()) == (0, b"", after)
    tail.nsqd.create("bare")
    bare = ("tail", "--topic", "bare", "--channel", "c", *peek, "-n", "1")
    assert tail.cli(*bare, *http([tail.nsqd])).code == 1
    assert tail.nsqd.topic("bare")["channels"] == []


def test_a_signal_gives_back_what_a_peek_holds(tail: Tail) -> None:
    tail.publish([b"x"] * 3)
    running = tail.start("--peek", "-n", "9", "--idle-timeout", "1m", stdout=PIPE)
    assert running.process.stdout
    assert [running.process.stdout.readline() for _ in range(3)] == [b"x\n"] * 3
    assert tail.state() == (0, 3, 0, 0, 0)
    assert running.end(signal.SIGINT) == 130
    assert tail.state() == (3, 0, 0, 3, 0)


def test_where_prints_the_count_of_decoded_messages_and_gives_back_those_behind(
    tail: Tail,
) -> None:
    tail.publish([b"\x81\xa1n%c" % number for number in range(100)] + [b"text"])
    done = tail.cli(
        *tail.command("--decode", "msgpack", "--where", ".n % 10 == 9", "-n", "2"), *at(tail.nsqd)
    )
    assert (done.code, done.stdout) == (0, b'{"n":9}\n{"n":19}\n'), done.stderr
    assert eventually(lambda: tail.state()[1] == 0)
    assert tail.depth() == 81
    rest = tail.run("--decode", "msgpack", "--format", "%s;")
    assert rest.code == 0
    assert sorted(rest.stdout.split(b";"))[1:] == sorted(
        [*(b'{"n":%d}' % number for number in range(20, 100)), b"text"]
    )
    assert "did not decode, and used as received: 1 message" in rest.stderr


def test_a_peek_with_where_looks_at_its_count_and_a_faulty_decoder_takes_nothing(
    tail: Tail, tmp_path: Path
) -> None:
    tail.publish([b'{"n":%d}' % number for number in range(10)])
    peeked = tail.cli(*tail.command("--peek", "-n", "10", "--where", ".n > 7"), *at(tail.nsqd))
    assert (peeked.code, peeked.stdout.splitlines()) == (0, [b'{"n":8}', b'{"n":9}'])
    decoder = f"avro:{tmp_path}/none"
    failed = tail.cli(*tail.command("--decode", decoder), *at(tail.nsqd))
    assert (failed.code, failed.stderr.count("\n")) == (2, 1), failed.stderr
    assert f"--decode {decoder}: " in failed.stderr
    assert eventually(lambda: tail.depth() == 10)
    failed = tail.cli(*tail.command("--decode", "cmd:false"), *at(tail.nsqd))
    assert (failed.code, "cmd:false: the program ended" in failed.stderr) == (1, True)
    assert eventually(lambda: tail.depth() >= 8)
