"""``pub`` as a process on real servers, and what ``tail`` finds there afterwards."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.process import Cli, Terminal
from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd, at, drained, lookup, registered

Start = Callable[..., subprocess.Popen[bytes]]

BINARY = [
    b"\x00",
    b"\n",
    b"a\nb\x00c",
    bytes(range(256)),
    b"\xff\xfe\xfd",
    "käse \u2028 \U0001f9c0".encode(),
    b'{"quoted": "\\"}',
    b"x" * 100_000,
]


@pytest.fixture
def start(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> Start:
    """Starts ``pub`` to a topic of this test's own, with pipes."""

    def start(*options: str, **streams: Any) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        return nsqtools_cli.start("pub", "--topic", topic, *at(nsqd), *options, **pipes)

    return start


def write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin
    process.stdin.write(data)
    process.stdin.flush()


def until(process: subprocess.Popen[bytes], text: str) -> None:
    """Wait for a line of stderr with the text in it."""
    assert process.stderr
    assert any(text.encode() in line for line in process.stderr), text


def count(nsqd: Nsqd, topic: str) -> int:
    found: int = nsqd.topic(topic)["message_count"]
    return found


def test_many_messages_pass_pub_and_tail_over_three_nsqds_unchanged(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, nsqlookupd: Nsqlookupd, topic: str, full: bool
) -> None:
    """Without ``--mode`` there is a warning, because to_nsq would have copied them."""
    number = 200_000 if full else 20_000
    nsqds = [make_nsqd(lookupds=[nsqlookupd]) for _ in range(3)]
    for nsqd in nsqds:
        nsqd.create(topic, "copy")
    registered(topic, [nsqlookupd], 3)
    lines = [b"%d %s" % (each, os.urandom(12).hex().encode()) for each in range(number)]
    pub = ("pub", "--topic", topic, *(word for nsqd in nsqds for word in at(nsqd)))
    published = nsqtools_cli(*pub, "--mode", "round-robin", stdin=b"\n".join(lines[2:]))
    assert (published.code, published.stdout, published.stderr) == (0, b"", "")
    assert all(count(nsqd, topic) > number // 20 for nsqd in nsqds)
    assert "--mode all" in nsqtools_cli(*pub, lines[0].decode()).stderr
    assert nsqtools_cli(*pub, "--mode", "hostpool", lines[1].decode()).stderr == ""
    tail = ("tail", "--topic", topic, "--channel", "copy", "-n", str(number))
    tailed = nsqtools_cli(*tail, *lookup([nsqlookupd]))
    assert (tailed.code, tailed.stderr) == (0, "")
    assert sorted(tailed.stdout.splitlines()) == sorted(lines)
    assert all(drained(nsqd, topic, "copy") for nsqd in nsqds)


def test_any_bytes_survive_both_ways(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    other = f"{topic}.copy"
    nsqd.create(topic, "c")
    nsqd.create(other, "c")
    nsqd.publish(topic, BINARY)
    tail = ["tail", "--channel", "c", "-n", str(len(BINARY)), "--json", *at(nsqd), "--topic"]
    first = nsqtools_cli(*tail, topic)
    copied = nsqtools_cli("pub", "--topic", other, "--json", *at(nsqd), stdin=first.stdout)
    assert (first.code, copied.code, copied.stderr) == (0, 0, "")
    envelopes = [json.loads(line) for line in nsqtools_cli(*tail, other).stdout.splitlines()]
    assert {each["topic"] for each in envelopes} == {other}
    bodies = [
        each["body"].encode() if "body" in each else base64.b64decode(each["body_b64"])
        for each in envelopes
    ]
    assert sorted(bodies) == sorted(BINARY)


def test_go_spellings_and_options_of_the_go_tools_work(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    """An empty message is skipped, and an option that only consumers use is accepted."""
    nsqd.create(topic, "c")
    address = f"-nsqd-tcp-address={nsqd.tcp}"
    published = nsqtools_cli(
        *("pub", "-topic", topic, address, "-delimiter", ";", "-rate=100000"),
        *("-producer-opt", "client_id,tests", "-producer-opt", "max_attempts,3"),
        stdin=b"a;b;;c",
    )
    tailed = nsqtools_cli(
        *("tail", "-topic", topic, "-channel", "c", address, "-n", "3", "-max-in-flight=10"),
        *("-consumer-opt", "max_attempts,3", "--consumer-opt=snappy", "-print-topic"),
    )
    assert (published.code, published.stderr, tailed.code, tailed.stderr) == (0, "", 0, "")
    assert sorted(tailed.stdout.splitlines()) == [f"{topic} | {x}".encode() for x in "abc"]


def test_messages_too_big_for_nsqd_are_refused_alone_with_status_4(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-max-msg-size=100")
    lines = [b"x" * (500 if number % 50 == 0 else 10) for number in range(1, 501)]
    published = nsqtools_cli("pub", "--topic", topic, *at(nsqd), stdin=b"\n".join(lines))
    assert published.code == 4
    assert ": 10 of 500: " in published.stderr
    assert "E_BAD_MESSAGE" in published.stderr
    assert count(nsqd, topic) >= 490  # nsqd hangs up, and some may come twice


@pytest.mark.parametrize("typed", [False, True])
def test_progress_is_shown_on_a_terminal_unless_messages_are_typed_there(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, typed: bool
) -> None:
    (tmp_path / "lines").write_text("hello\n" * 20)
    file = () if typed else ("--file", "lines", "--rate", "10")
    with Terminal(nsqtools_cli, "pub", "--topic", topic, *at(nsqd), *file) as terminal:
        if typed:
            terminal.type("hello\n\x04")
        assert terminal.end() == 0
    rates = re.findall(r"\d+ published, (\d+)/s", terminal.output)
    assert bool(rates) == (not typed)
    assert all(0 <= int(rate) <= 20 for rate in rates)
    assert count(nsqd, topic) == (1 if typed else 20)


def test_an_argument_is_json_as_a_line_of_a_file_is_and_one_wrong_keeps_all_back(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    pub = ("pub", "--topic", topic, "--json", *at(nsqd))
    ended = nsqtools_cli(*pub, '{"body":"x"}', '{"body":1}')
    assert (ended.code, ended.stderr.count("line 2: "), count(nsqd, topic)) == (2, 1, 0)
    assert nsqtools_cli(*pub, '{"body":"x"}', '{"topic":"t","body_b64":"/w=="}').code == 0
    tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", "-n", "2", *at(nsqd))
    assert sorted(tailed.stdout.split()) == [b"x", b"\xff"]


@pytest.mark.parametrize(
    ("file", "stdin", "code"),
    [
        ("folder", "", 2),
        ("-", "closed", 2),
        ("/proc/self/mem", "", 1),
        ("-", "/proc/self/mem", 1),
    ],
)
def test_input_that_cannot_be_read_is_named_before_all_is_published_if_that_is_known(
    start: Start, nsqd: Nsqd, topic: str, tmp_path: Path, file: str, stdin: str, code: int
) -> None:
    nsqd.create(topic)
    (tmp_path / "first").write_text("one\n")
    (tmp_path / "folder").mkdir()
    closed = {"preexec_fn": lambda: os.close(0)} if stdin == "closed" else {}
    with open("/proc/self/mem" if stdin.startswith("/") else os.devnull, "rb") as source:
        pub = start("--file", "first", "--file", file, stdin=source, **closed)
    _, stderr = pub.communicate(timeout=60)
    named = b"standard input: " if file == "-" else f"{file}: ".encode()
    assert (pub.returncode, named in stderr) == (code, True), stderr
    assert count(nsqd, topic) == (0 if code == 2 else 1)


def test_the_writer_of_a_pipe_is_waited_for_and_a_file_that_fails_later_is_no_usage_error(
    start: Start, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "last").write_text("never\n")
    pub = start("--file", "pipe", "--file", "last")
    with (tmp_path / "pipe").open("w") as pipe:  # until it is opened to be read, which is once
        pipe.write("one\n")
        pipe.flush()
        eventually(lambda: count(nsqd, topic) == 1)
        (tmp_path / "last").unlink()
    _, stderr = pub.communicate(timeout=60)
    assert (pub.returncode, b"last: " in stderr) == (1, True)
    assert b"1 published before" in stderr


def test_a_profile_with_nsqlookupds_publishes_to_the_nsqds_that_have_the_topic_in_turn(
    nsqtools_cli: Cli, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[defaults]\nnsqd-tcp-address = "127.0.0.1:1"\n'
        f"[profile.prod]\nlookupd-http-address = {[str(each.http) for each in lookupds]}\n"
    )
    pub = ("pub", "--topic", topic, "--config", str(config), "--profile", "prod")
    one_by_one = ("--rate", "1000", "--max-body-size", "64", *["x" * 50] * 6)
    assert nsqtools_cli(*pub, *one_by_one).code == 0
    everywhere = [count(each, topic) for each in nsqds]
    assert (sum(everywhere), min(everywhere) > 0) == (6, True)
    nsqds[2].delete(topic)
    registered(topic, lookupds[:1], 2)
    registered(topic, lookupds[1:], 1)
    assert nsqtools_cli(*pub, *one_by_one).code == 0
    assert all(count(nsqds[n], topic) > everywhere[n] for n in (0, 1))
    assert nsqds[2].stats(topic)["topics"] in ([], None)
    for each in lookupds:
        each.stop()
    assert nsqtools_cli(*pub, "x").code == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_lines_are_published_as_they_come_and_a_signal_says_that_input_is_left(
    start: Start, nsqd: Nsqd, topic: str, number: signal.Signals, code: int
) -> None:
    pub = start()
    for expected in (1, 2):
        write(pub, b"line\n")
        eventually(lambda expected=expected: count(nsqd, topic) == expected)  # type: ignore[misc]
    write(pub, b"no end")
    pub.send_signal(number)
    until(pub, "2 published, 0 read and not published, 6 bytes of an incomplete record")
    assert pub.wait(100) == code
    assert count(nsqd, topic) == 2


@pytest.mark.parametrize(
    "options",
    [("--rate", "20"), ("--json", "--pace", "1x"), ("--rate", "20", *["x"] * 30)],
    ids=["rate", "pace", "arguments"],
)
def test_a_signal_loses_nothing_of_what_was_read_and_waits_for_its_time(
    start: Start, nsqd: Nsqd, topic: str, options: tuple[str, ...]
) -> None:
    pub = start(*options)
    write(pub, b"".join(b'{"body":"x","timestamp":%d}\n' % (n * 50_000_000) for n in range(30)))
    eventually(lambda: count(nsqd, topic))
    pub.send_signal(signal.SIGTERM)
    until(pub, "30 published, 0 read and not published")
    assert pub.wait(100) == 0
    assert count(nsqd, topic) == 30


def test_a_second_signal_leaves_although_nsqd_is_gone(start: Start, nsqd: Nsqd, topic: str) -> None:
    pub = start("--rate", "20", *["x"] * 200)
    eventually(lambda: count(nsqd, topic))
    nsqd.kill()
    until(pub, str(nsqd.tcp))
    pub.send_signal(signal.SIGINT)
    until(pub, "publishing what was read")
    with pytest.raises(subprocess.TimeoutExpired):
        pub.wait(0.5)  # it waits for an nsqd to publish to, and takes a signal at once for the same
    pub.send_signal(signal.SIGINT)
    until(pub, "read and not published")
    assert pub.wait(100) == 130


@pytest.mark.parametrize(
    ("number", "messages", "code"),
    [(signal.SIGINT, (), 130), (signal.SIGTERM, (), 0), (signal.SIGTERM, ("given",), 4)],
)
def test_a_signal_ends_a_handshake_that_never_ends(
    nsqtools_cli: Cli, topic: str, number: signal.Signals, messages: tuple[str, ...], code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        where = ("--topic", topic, "--nsqd-tcp-address", address)
        pub = nsqtools_cli.start("pub", *where, *messages)
        peer, _ = silent.accept()
        with peer:
            peer.recv(4)
            pub.send_signal(number)
            assert pub.wait(100) == code
