"""``pub`` and ``tail`` as processes on real servers: pipes, signals, failures, exit codes."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.eventually import eventually
from tests.support.process import COMMAND

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import MakeNsqd, MakeNsqlookupd, Nsqd

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


def at(nsqd: Nsqd) -> tuple[str, str]:
    return "--nsqd-tcp-address", str(nsqd.tcp)


def empty(nsqd: Nsqd) -> tuple[str, ...]:
    """Options to drain a channel."""
    return "--until-empty", "--nsqd-http-address", str(nsqd.http), *at(nsqd)


def drained(nsqd: Nsqd, topic: str, channel: str) -> bool:
    """Whether a channel holds nothing: all was finished."""
    found = nsqd.channel(topic, channel)
    return not (found["depth"] or found["in_flight_count"] or found["deferred_count"])


def test_200_000_messages_pass_pub_and_tail_over_three_nsqds_unchanged(
    nsqtools_cli: Cli,
    make_nsqd: MakeNsqd,
    make_nsqlookupd: MakeNsqlookupd,
    topic: str,
    tmp_path: object,
) -> None:
    lookupd = make_nsqlookupd()
    nsqds = [make_nsqd(lookupds=[lookupd]) for _ in range(3)]
    for nsqd in nsqds:
        nsqd.create(topic, "copy")
    eventually(lambda: len(lookupd.lookup(topic)) == 3)
    lines = [b"%d %s" % (number, os.urandom(12).hex().encode()) for number in range(200_000)]
    addresses = [word for nsqd in nsqds for word in at(nsqd)]
    published = nsqtools_cli("pub", "--topic", topic, *addresses, stdin=b"\n".join(lines))
    assert (published.code, published.stdout, published.stderr) == (0, b"", "")
    assert all(nsqd.topic(topic)["message_count"] > 10_000 for nsqd in nsqds)

    tailed = nsqtools_cli(
        *("tail", "--topic", topic, "--channel", "copy", "-n", "200000"),
        *("--lookupd-http-address", str(lookupd.http)),
    )

    assert (tailed.code, tailed.stderr) == (0, "")
    assert sorted(tailed.stdout.splitlines()) == sorted(lines)
    assert all(drained(nsqd, topic, "copy") for nsqd in nsqds)


@pytest.mark.parametrize("form", ["--json", "--length-prefix"])
def test_any_bytes_survive_both_ways(nsqtools_cli: Cli, nsqd: Nsqd, topic: str, form: str) -> None:
    other = f"{topic}.copy"
    nsqd.create(topic, "c")
    nsqd.create(other, "c")
    nsqd.publish(topic, BINARY)
    tail = ["tail", "--channel", "c", "-n", str(len(BINARY)), form, *at(nsqd), "--topic"]

    first = nsqtools_cli(*tail, topic)
    copied = nsqtools_cli("pub", "--topic", other, form, *at(nsqd), stdin=first.stdout)
    second = nsqtools_cli(*tail, other, "--length-prefix" if form == "--json" else form)

    assert (first.code, copied.code, copied.stderr) == (0, 0, "")
    if form == "--json":
        assert second.code == 2  # two forms at once
        second = nsqtools_cli(*tail, other)
        bodies = [json.loads(line) for line in second.stdout.split(b"\n")[:-1]]
        assert len(bodies) == len(BINARY)
        assert {line["topic"] for line in bodies} == {other}
    assert sorted(_bodies(form, second.stdout)) == sorted(BINARY)


def _bodies(form: str, data: bytes) -> list[bytes]:
    import base64

    if form == "--json":
        envelopes = [json.loads(line) for line in data.split(b"\n")[:-1]]
        return [
            e["body"].encode() if "body" in e else base64.b64decode(e["body_b64"])
            for e in envelopes
        ]
    bodies = []
    while data:
        (size,) = struct.unpack_from(">I", data)
        bodies.append(data[4 : 4 + size])
        data = data[4 + size :]
    return bodies


def test_the_last_record_without_delimiter_is_whole_and_empty_ones_are_skipped(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    assert nsqtools_cli("pub", "--topic", topic, *at(nsqd), stdin=b"one\n\ntwo\nthree").code == 0
    tailed = nsqtools_cli("tail", "--topic", topic, "--channel", "c", *empty(nsqd))
    assert sorted(tailed.stdout.split()) == [b"one", b"three", b"two"]


def test_go_spellings_and_options_of_the_go_tools_work(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    address = f"-nsqd-tcp-address={nsqd.tcp}"
    published = nsqtools_cli(
        *("pub", "-topic", topic, address, "-delimiter", ";", "-rate=100000"),
        *("-producer-opt", "client_id,tests"),
        stdin=b"a;b;c",
    )
    tailed = nsqtools_cli(
        *("tail", "-topic", topic, "-channel", "c", address, "-n", "3", "-max-in-flight=10"),
        *("-consumer-opt", "max_attempts,3", "--consumer-opt=snappy", "-print-topic"),
    )
    assert (published.code, tailed.code, tailed.stderr) == (0, 0, "")
    assert sorted(tailed.stdout.splitlines()) == [f"{topic} | {x}".encode() for x in "abc"]


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


@pytest.mark.parametrize("command", ["tail", "pub"])
def test_nothing_listening_is_status_3_in_one_line(
    nsqtools_cli: Cli, topic: str, command: str
) -> None:
    ended = nsqtools_cli(command, "--topic", topic, "--nsqd-tcp-address", "127.0.0.1:1")
    assert ended.code == 3
    assert ended.stderr == "nsqtools: 127.0.0.1:1: connection refused\n"


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


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/ptmx of Linux")
def test_control_bytes_never_reach_a_terminal(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"\x1b[31mred\x07"])
    leader, follower = os.openpty()
    tail = nsqtools_cli.start(
        "tail", "--topic", topic, "--channel", "c", "-n", "1", *at(nsqd), stdout=follower
    )
    os.close(follower)
    assert tail.wait(20) == 0
    assert os.read(leader, 1000) == b"\\x1b[31mred\\x07\r\n"
    os.close(leader)


def test_lookup_unites_and_marks(
    nsqtools_cli: Cli, make_nsqd: MakeNsqd, make_nsqlookupd: MakeNsqlookupd, topic: str
) -> None:
    lookupds = [make_nsqlookupd(), make_nsqlookupd()]
    nsqds = [make_nsqd(lookupds=[lookupd]) for lookupd in lookupds]
    for number, nsqd in enumerate(nsqds):
        nsqd.create(topic, f"channel{number}")
    for lookupd in lookupds:
        eventually(lambda lookupd=lookupd: lookupd.lookup(topic))  # type: ignore[misc]
    addresses = [word for each in lookupds for word in ("--lookupd-http-address", str(each.http))]

    def lookup(*words: str, code: int = 0) -> str:
        ended = nsqtools_cli("lookup", *words, *addresses)
        assert ended.code == code, ended.stderr
        return ended.stdout.decode()

    assert lookup("topics") == f"{topic}\n"
    assert eventually(lambda: lookup("channels", topic) == "channel0\nchannel1\n")
    tcp = sorted(str(nsqd.tcp) for nsqd in nsqds)
    assert sorted(line.split("\t")[0] for line in lookup("producers", topic).splitlines()) == tcp
    lookupds[0].request(
        "POST", "/topic/tombstone", topic=topic, node=f"127.0.0.1:{nsqds[0].http.port}"
    )
    nodes = json.loads(lookup("nodes", "--json"))["producers"]
    marks = {node["tcp_port"]: node["tombstones"] for node in nodes}
    assert marks == {nsqds[0].tcp.port: [True], nsqds[1].tcp.port: [False]}
    lookupds[0].stop()
    survived = nsqtools_cli("lookup", "topics", *addresses)
    assert (survived.code, survived.stdout.decode()) == (0, f"{topic}\n")
    assert str(lookupds[0].http) in survived.stderr
    lookupds[1].stop()
    lookup("topics", code=3)
