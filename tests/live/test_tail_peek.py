"""``tail --peek`` as a process on a real nsqd: a look that takes nothing."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any

from tests.support.eventually import eventually
from tests.support.raw import Raw
from tests.support.reporting import fill, http
from tests.support.servers import at

if TYPE_CHECKING:
    from tests.support.process import Cli
    from tests.support.servers import Nsqd


def state(nsqd: Nsqd, topic: str) -> tuple[int, ...]:
    """Depth, in flight, deferred, requeued and timed out of channel ``c``."""
    found = nsqd.channel(topic, "c")
    held = (found["depth"], found["in_flight_count"], found["deferred_count"])
    return (*held, found["requeue_count"], found["timeout_count"])


def peek(topic: str, nsqd: Nsqd, *options: str) -> tuple[str, ...]:
    return ("tail", "--topic", topic, "--channel", "c", "--peek", *at(nsqd), *options)


def test_so_many_are_shown_and_given_back_and_no_other_is_touched(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic, "c")
    nsqd.publish(topic, [b"%d" % number for number in range(100)])
    eventually(lambda: state(nsqd, topic)[0] == 100)
    for round_ in (1, 2):
        ended = nsqtools_cli(*peek(topic, nsqd, "-n", "5", "--max-attempts", "1"))
        assert (ended.code, len(set(ended.stdout.split()))) == (0, 5)
        assert "5 messages given back" in ended.stderr
        eventually(lambda round_=round_: state(nsqd, topic) == (100, 0, 0, 5 * round_, 0))  # type: ignore[misc]
    ended = nsqtools_cli("tail", "--topic", topic, "--channel", "c", "-n", "100", *at(nsqd))
    assert sorted(map(int, ended.stdout.split())) == list(range(100))


def test_what_is_deferred_or_with_another_consumer_or_of_a_paused_channel_is_left_there(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    fill(nsqd, topic, count=2)
    options = ("-n", "9", "--idle-timeout", "300ms")
    with Raw(nsqd.tcp) as other:
        other.identify()
        other.subscribe(topic, "c", ready=2)
        later, _ = other.message(), other.message()
        other.send(f"REQ {later.id} 600000")
        eventually(lambda: state(nsqd, topic) == (0, 1, 1, 1, 0))
        other.send("RDY 0")
        ended = nsqtools_cli(*peek(topic, nsqd, *options))
        assert (ended.code, ended.stdout, state(nsqd, topic)) == (0, b"", (0, 1, 1, 1, 0))
        nsqd.publish(topic, [b"y"])
        nsqd.pause(topic, "c")
        ended = nsqtools_cli(*peek(topic, nsqd, *options))
        assert (ended.code, ended.stdout, state(nsqd, topic)) == (0, b"", (1, 1, 1, 1, 0))


def test_a_signal_gives_back_what_is_held(nsqtools_cli: Cli, nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, count=3)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = nsqtools_cli.start(*peek(topic, nsqd, "-n", "9", "--idle-timeout", "1m"), **pipes)
    assert running.stdout
    assert [running.stdout.readline() for _ in range(3)] == [b"x\n"] * 3
    assert state(nsqd, topic) == (0, 3, 0, 0, 0)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert state(nsqd, topic) == (3, 0, 0, 3, 0)


def test_it_makes_no_channel_and_refuses_what_would_take_messages(
    nsqtools_cli: Cli, nsqd: Nsqd, topic: str
) -> None:
    nsqd.create(topic)
    assert nsqtools_cli(*peek(topic, nsqd, "-n", "1", *http([nsqd]))).code == 1
    assert nsqd.topic(topic)["channels"] == []
    for options in (
        (),
        ("-n", "1", "--until-empty"),
        ("-n", "1", "--consumer-opt", "sample_rate,5"),
    ):
        assert nsqtools_cli(*peek(topic, nsqd, *options)).code == 2
