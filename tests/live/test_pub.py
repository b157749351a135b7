"""``pub`` as a process on real servers: input, refusals, failures, exit codes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.eventually import eventually
from tests.support.reporting import registered
from tests.support.servers import at
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, Nsqd, Nsqlookupd

    Start = Callable[..., subprocess.Popen[bytes]]


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


def count(nsqd: Nsqd, topic: str) -> int:
    found: int = nsqd.topic(topic)["message_count"]
    return found


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


def test_progress_is_shown_on_a_terminal_unless_messages_are_typed_there(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("hello\n")
    pub = ("pub", "--topic", topic, *at(nsqd))
    with Terminal(nsqtools_cli, *pub, "--file", str(tmp_path / "lines")) as terminal:
        assert terminal.end() == 0
        assert "\x1b[K" in terminal.output
    with Terminal(nsqtools_cli, *pub) as terminal:
        terminal.type("hello\n\x04")
        assert terminal.end() == 0
        assert "\x1b[K" not in terminal.output
    assert count(nsqd, topic) == 2


def test_a_line_of_a_slow_producer_is_published_at_once(
    start: Start, nsqd: Nsqd, topic: str
) -> None:
    pub = start()
    for number in range(1, 4):
        write(pub, b"line\n")
        eventually(lambda number=number: count(nsqd, topic) == number)  # type: ignore[misc]
    pub.communicate(timeout=60)
    assert pub.returncode == 0


def test_defer_defers_and_an_empty_line_is_skipped(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    published = nsqtools_cli("pub", "--topic", topic, "--defer", "1h", *at(nsqd), stdin=b"a\n\nb")
    assert (published.code, published.stdout) == (0, b"")
    eventually(lambda: nsqd.channel(topic, "c")["deferred_count"] == 2)


def test_an_argument_is_json_as_a_line_of_a_file_is_and_one_wrong_keeps_all_back(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    pub = ("pub", "--topic", topic, "--json", *at(nsqd))
    ended = nsqtools_cli(*pub, '{"body":"x"}', '{"body":1}')
    assert (ended.code, ended.stderr.count("line 2: ")) == (2, 1)
    assert count(nsqd, topic) == 0
    assert nsqtools_cli(*pub, '{"body":"x"}', '{"topic":"t","body_b64":"/w=="}').code == 0
    assert nsqtools_cli(*pub, "", stdin=b"no").code == 2
    tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", "-n", "2", *at(nsqd))
    assert sorted(tailed.stdout.split()) == [b"x", b"\xff"]


# Nothing is published before all that is to be read is seen to be there.


@pytest.mark.parametrize("second", ["missing", "folder", "-"])
def test_a_file_that_cannot_be_read_keeps_all_from_being_published(
    start: Start, nsqd: Nsqd, topic: str, tmp_path: Path, second: str
) -> None:
    nsqd.create(topic)
    (tmp_path / "first").write_text("one\n")
    (tmp_path / "folder").mkdir()
    closed = {"preexec_fn": lambda: os.close(0)} if second == "-" else {}
    pub = start("--file", "first", "--file", second, stdin=subprocess.DEVNULL, **closed)
    _, stderr = pub.communicate(timeout=60)
    assert pub.returncode == 2
    assert (b"standard input" if second == "-" else f"--file {second}".encode()) in stderr
    assert count(nsqd, topic) == 0


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


def test_a_read_that_fails_names_what_was_read(start: Start, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic)
    for options, name in (((), b"standard input"), (("--file", "/proc/self/mem"), b"/mem: ")):
        with open("/proc/self/mem", "rb") as unreadable:
            pub = start(*options, stdin=unreadable)
        _, stderr = pub.communicate(timeout=60)
        assert (pub.returncode, name in stderr, b"standard output" in stderr) == (1, True, False)


def test_a_profile_with_nsqlookupds_publishes_to_the_nsqds_that_have_the_topic_in_turn(
    nsqtools_cli: Cli, nsqds: list[Nsqd], lookupds: list[Nsqlookupd], topic: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    urls = [str(each.http) for each in lookupds]
    config.write_text(
        '[defaults]\nnsqd-tcp-address = "127.0.0.1:1"\n'
        f"[profile.prod]\nlookupd-http-address = {urls}\n"
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


def test_several_nsqds_without_a_mode_get_a_warning_that_to_nsq_copied(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str, tmp_path: Path
) -> None:
    nsqds = [make_nsqd(), make_nsqd()]
    for nsqd in nsqds:
        nsqd.create(topic)
    addresses = [word for nsqd in nsqds for word in at(nsqd)]
    (file := tmp_path / "chosen.toml").write_text('[pub]\nmode = "round-robin"\n')

    def warned(*options: str) -> bool:
        published = nsqtools_cli("pub", "--topic", topic, *options, "one", "two")
        assert published.code == 0, published.stderr
        return "--mode all" in published.stderr

    assert warned(*addresses)
    assert sum(count(nsqd, topic) for nsqd in nsqds) == 2
    assert not warned(*addresses[:2])
    assert not warned("--mode", "hostpool", *addresses)
    assert not warned("--config", str(file), *addresses)


def test_a_name_of_go_nsq_that_only_consumers_use_is_accepted_and_told_with_v(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    pub = ("pub", "--topic", topic, *at(nsqd), "--producer-opt", "max_attempts,3", "one")
    ended = nsqtools_cli(*pub)
    assert (ended.code, ended.stderr) == (0, "")
    assert "max_attempts" in nsqtools_cli(*pub, "-v").stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_a_signal_publishes_what_was_read_and_says_that_input_is_left(
    start: Start, nsqd: Nsqd, topic: str, number: signal.Signals, code: int
) -> None:
    pub = start()
    write(pub, b"line\nno end")
    eventually(lambda: count(nsqd, topic))
    pub.send_signal(number)
    assert pub.wait(100) == code
    assert pub.stderr
    assert b"1 published" in pub.stderr.read()
    assert count(nsqd, topic) == 1


@pytest.mark.parametrize("options", [("--rate", "20"), ("--json", "--pace", "1x")])
def test_a_signal_loses_nothing_of_what_was_read_and_waits_for_its_time(
    start: Start, nsqd: Nsqd, topic: str, options: tuple[str, ...]
) -> None:
    pub = start(*options)
    write(pub, b"".join(b'{"body":"x","timestamp":%d}\n' % (n * 50_000_000) for n in range(30)))
    eventually(lambda: count(nsqd, topic))
    pub.send_signal(signal.SIGTERM)
    assert pub.wait(100) == 1
    assert pub.stderr
    assert b"30 published, 0 read and not published" in pub.stderr.read()
    assert count(nsqd, topic) == 30


def test_a_signal_does_not_fail_what_ends_all_the_same(
    start: Start, nsqd: Nsqd, topic: str
) -> None:
    pub = start("--rate", "20", *["x"] * 20)
    eventually(lambda: count(nsqd, topic))
    pub.send_signal(signal.SIGTERM)
    assert pub.wait(100) == 0
    assert count(nsqd, topic) == 20


def test_a_second_signal_leaves_although_nsqd_is_gone(start: Start, nsqd: Nsqd, topic: str) -> None:
    pub = start()
    assert pub.stderr
    write(pub, b"first\n")
    eventually(lambda: count(nsqd, topic) == 1)
    nsqd.kill()
    assert str(nsqd.tcp).encode() in pub.stderr.readline()
    write(pub, b"second\n")
    pub.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        pub.wait(0.5)  # it waits for an nsqd to publish to
    pub.send_signal(signal.SIGINT)
    assert pub.wait(100) == 130
    assert b"Traceback" not in pub.stderr.read()


def test_a_signal_ends_a_handshake_that_never_ends(nsqtools_cli: Cli, topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        process = nsqtools_cli.start(
            *("pub", "--topic", topic, "--nsqd-tcp-address", f"127.0.0.1:{port}"),
            stderr=subprocess.PIPE,
        )
        peer, _ = silent.accept()
        with peer:
            peer.recv(4)
            process.send_signal(signal.SIGINT)
            assert process.wait(100) == 130
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()
