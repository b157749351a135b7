"""``pub`` as a process on real servers: input, refusals, failures, exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support import wire
from tests.support.eventually import eventually
from tests.support.hostile import Hostile
from tests.support.servers import at, empty

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.nsqd_only("it is about messages on disk")
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


def test_an_argument_is_json_as_a_line_of_a_file_is(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    lines = '{"body":"x"}', '{"topic":"t","body_b64":"/w=="}', ""
    assert nsqtools_cli("pub", "--topic", topic, "--json", *at(nsqd), *lines).code == 0
    assert nsqtools_cli("pub", "--topic", topic, "--json", *at(nsqd), "", stdin=b"no").code == 0
    tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", *empty(nsqd))
    assert sorted(tailed.stdout.split()) == [b"x", b"\xff"]


@pytest.mark.parametrize("wrong", ["notjson", "{}", '{"body":1}', '{"body":"x"', '["x"]'])
def test_an_argument_that_is_no_such_json_keeps_all_from_being_published(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, wrong: str
) -> None:
    nsqd.create(topic)
    ended = nsqtools_cli("pub", "--topic", topic, "--json", *at(nsqd), '{"body":"x"}', wrong)
    assert (ended.code, ended.stderr.count("line 2: ")) == (2, 1)
    assert nsqd.topic(topic)["message_count"] == 0


class TestFiles:
    """Nothing is published before all that is to be read is seen to be there."""

    @pytest.mark.parametrize("second", ["missing", "folder", "secret", "-"])
    def test_one_that_cannot_be_read_keeps_all_from_being_published(
        self, nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path, second: str
    ) -> None:
        nsqd.create(topic)
        (tmp_path / "first").write_text("one\n")
        (tmp_path / "folder").mkdir()
        (tmp_path / "secret").symlink_to("/proc/self/mem/none")
        pub = nsqtools_cli.start(
            *("pub", "--topic", topic, *at(nsqd), "--file", "first", "--file", second),
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: os.close(0),
        )
        _, stderr = pub.communicate(timeout=20)
        assert pub.returncode == 2
        assert (b"standard input" if second == "-" else f"--file {second}: ".encode()) in stderr
        assert nsqd.topic(topic)["message_count"] == 0

    def test_the_writer_of_a_pipe_is_waited_for(
        self, nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
    ) -> None:
        (tmp_path / "first").write_text("one\n")
        os.mkfifo(tmp_path / "pipe")
        pub = nsqtools_cli.start(
            *("pub", "--topic", topic, *at(nsqd), "--file", "first", "--file", "pipe"), cwd=tmp_path
        )
        with (tmp_path / "pipe").open("w") as pipe:  # until it is opened to be read, which is once
            pipe.write("two\nthree\n")
        assert pub.wait(20) == 0
        assert nsqd.topic(topic)["message_count"] == 3

    def test_one_that_fails_later_is_named_and_is_no_usage_error(
        self, nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
    ) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "last").write_text("never\n")
        pub = nsqtools_cli.start(
            *("pub", "--topic", topic, *at(nsqd), "--file", "pipe", "--file", "last"),
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        with (tmp_path / "pipe").open("w") as pipe:
            pipe.write("one\n")
            pipe.flush()
            eventually(lambda: nsqd.topic(topic)["message_count"] == 1)
            (tmp_path / "last").unlink()
        _, stderr = pub.communicate(timeout=20)
        assert pub.returncode == 1
        assert b"last: No such file" in stderr
        assert b"1 published before" in stderr

    def test_a_read_that_fails_names_what_was_read(
        self, nsqtools_cli: Cli, nsqd: Nsqd, topic: str
    ) -> None:
        nsqd.create(topic)
        for options, name in (((), b"standard input"), (("--file", "/proc/self/mem"), b"/mem: ")):
            with open("/proc/self/mem", "rb") as unreadable:
                pub = nsqtools_cli.start(
                    *("pub", "--topic", topic, *at(nsqd), *options),
                    stdin=unreadable,
                    stderr=subprocess.PIPE,
                )
            _, stderr = pub.communicate(timeout=20)
            assert (pub.returncode, name in stderr, b"standard output" in stderr) == (
                1,
                True,
                False,
            )


def test_a_profile_that_names_nsqlookupd_alone_is_refused(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    nsqd.create(topic)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[defaults]\nnsqd-tcp-address = "{nsqd.tcp}"\n'
        '[profile.prod]\nlookupd-http-address = "10.0.0.1:4161"\n'
    )
    command = ("pub", "--topic", topic, "--config", str(config), "x")
    ended = nsqtools_cli(*command, "--profile", "prod")
    assert ended.code == 2
    assert "[profile.prod]" in ended.stderr
    assert "--nsqd-tcp-address" in ended.stderr
    variable = nsqtools_cli(*command, env={"NSQTOOLS_LOOKUPD_HTTP_ADDRESS": "10.0.0.1:4161"})
    assert variable.code == 2
    assert nsqd.topic(topic)["message_count"] == 0
    assert nsqtools_cli(*command, "--profile", "prod", *at(nsqd)).code == 0
    assert nsqtools_cli(*command).code == 0
    assert nsqd.topic(topic)["message_count"] == 2


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
    assert ended.stderr.endswith("; 1 published before it\n")


def test_a_signal_publishes_what_was_read_and_says_that_input_is_left(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 1)):
        pub = nsqtools_cli.start(
            *("pub", "--topic", topic, *at(nsqd)), stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert pub.stdin
        assert pub.stderr
        pub.stdin.write(b"line\nno end")
        pub.stdin.flush()
        eventually(lambda: nsqd.topic(topic)["message_count"])
        pub.send_signal(number)
        assert pub.wait(10) == code
        text = pub.stderr.read()
        assert text == b"nsqtools: stopped before the end of the input, 1 published\n"
        nsqd.delete(topic)


def test_a_second_signal_leaves_although_nsqd_is_gone(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    pub = nsqtools_cli.start(
        *("pub", "--topic", topic, *at(nsqd)), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert pub.stdin
    assert pub.stderr
    pub.stdin.write(b"first\n")
    pub.stdin.flush()
    eventually(lambda: nsqd.topic(topic)["message_count"] == 1)
    nsqd.kill()
    assert b"connection lost" in pub.stderr.readline()
    pub.stdin.write(b"second\n")
    pub.stdin.flush()
    pub.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        pub.wait(0.5)  # it waits for an nsqd to publish to
    pub.send_signal(signal.SIGINT)
    assert pub.wait(10) == 130
    assert b"Traceback" not in pub.stderr.read()


@pytest.mark.parametrize("command", ["pub", "tail"])
def test_signals_end_a_handshake_that_never_ends(
    nsqtools_cli: Cli, topic: str, command: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        process = nsqtools_cli.start(
            *(command, "--topic", topic, "--nsqd-tcp-address", f"127.0.0.1:{port}"),
            stderr=subprocess.PIPE,
        )
        peer, _ = silent.accept()
        with peer:
            peer.recv(4)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()


def test_tee_into_a_stuck_reader_ends_with_signals(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    pub = nsqtools_cli.start(
        *("pub", "--topic", topic, "--tee", *at(nsqd)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert pub.stdin
    os.set_blocking(pub.stdin.fileno(), False)
    for _ in range(100):  # more than all pipes hold
        with contextlib.suppress(BlockingIOError):
            os.write(pub.stdin.fileno(), b"x" * 999 + b"\n")
    eventually(lambda: nsqd.topic(topic)["message_count"])
    pub.send_signal(signal.SIGINT)
    assert pub.wait(10) == 130


def test_tee_leaves_the_flags_of_a_shared_socket_alone(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    ours, shared = socket.socketpair()
    with ours, shared:
        pub = nsqtools_cli.start(
            *("pub", "--topic", topic, "--tee", *at(nsqd)), stdin=subprocess.PIPE, stdout=shared
        )
        assert pub.stdin
        pub.stdin.write(b"line\n")
        pub.stdin.flush()
        assert ours.recv(5, socket.MSG_WAITALL) == b"line\n"
        assert os.get_blocking(shared.fileno())
        pub.kill()
        pub.wait()
        assert os.get_blocking(shared.fileno())


def test_many_refused_messages_cost_no_good_one(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-max-msg-size=100")
    nsqd.create(topic, "c")
    lines = [b"x" * (500 if number % 50 == 0 else 10) for number in range(2000)]
    published = nsqtools_cli("pub", "--topic", topic, *at(nsqd), stdin=b"\n".join(lines))
    assert published.code == 4
    assert "40 of 2000 messages were not published: " in published.stderr
    assert nsqd.topic(topic)["message_count"] >= 1960


def test_deferred_messages_are_refused_one_by_one(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, topic: str
) -> None:
    nsqd = make_nsqd("-max-msg-size=100")
    nsqd.create(topic, "c")
    lines = [b"x" * (500 if number % 50 == 0 else 10) for number in range(1, 1001)]
    published = nsqtools_cli(
        "pub", "--topic", topic, "--defer", "1h", *at(nsqd), stdin=b"\n".join(lines)
    )
    assert published.code == 4
    assert "20 of 1000 messages were not published: " in published.stderr
    eventually(lambda: nsqd.channel(topic, "c")["deferred_count"] >= 980)


@pytest.mark.parametrize("reply", [b"CLOSE_WAIT", b"_heartbeat", b""])
def test_nothing_but_ok_counts_as_published(nsqtools_cli: Cli, reply: bytes) -> None:
    with Hostile(lambda: [wire.response(reply)], cue="PUB") as hostile:
        ended = nsqtools_cli(
            *("pub", "--topic", "t", "--nsqd-tcp-address", str(hostile.address)),
            *("--publish-timeout", "500ms", "hello"),
        )
    assert ended.code == 1
    assert "expected OK after a publish" in ended.stderr


def test_what_a_server_says_is_cut_and_escaped(nsqtools_cli: Cli) -> None:
    error = wire.error("E_BAD_TOPIC \x1b]0;owned\x07\n" + "x" * 100_000)
    with Hostile(lambda: [error], cue="PUB") as hostile:
        at = ("--nsqd-tcp-address", str(hostile.address))
        ended = nsqtools_cli("pub", "--topic", "t", *at, "hello")
    assert ended.code
    assert "\x1b" not in ended.stderr
    assert len(ended.stderr) < 1000
