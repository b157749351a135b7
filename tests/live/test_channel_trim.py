"""``channel trim`` as a process: what is old goes, what is younger stays, whoever consumes too."""

import gzip
import json
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqtools.cli import cli, exits
from nsqtools.cli.commands.admin.trim import _judge, _marks
from nsqtools.cli.exits import Ended
from nsqtools.clock import ServerClock
from nsqtools.engine.changes import Holding, Loss
from nsqtools.engine.cluster import Node
from nsqtools.errors import NSQError
from nsqtools.policy.trim import Marks
from nsqtools.proto.messages import Message
from tests.support.diskqueues import QueueFiles
from tests.support.eventually import eventually
from tests.support.process import Cli
from tests.support.raw import Raw
from tests.support.servers import MakeNsqd, Nsqd, at, http

NOW = time.time_ns
DAY = 86_400 * 10**9
OLD, YOUNGER = 500, 300
TRIM = ("channel", "trim", "t", "c", "--older-than", "24h")

pytestmark = pytest.mark.nsqd_only("it is about messages on disk")


@pytest.fixture
def nsqd(make_nsqd: MakeNsqd) -> Nsqd:
    """Its channel has messages that were published two days ago, and younger ones."""
    made = make_nsqd("-mem-queue-size=100")
    made.create("t", "c")
    made.stop()
    published = time.time_ns() - 2 * DAY
    files = QueueFiles(made.data_path, "t:c")
    size = files.write(
        0, [Message(b"0ld%013x" % n, b"old%d" % n, published, 1) for n in range(OLD)]
    )
    files.point(OLD, (0, 0), (0, size))
    made.start()
    made.publish("t", [b"new%03d" % number for number in range(YOUNGER)])
    eventually(lambda: state(made) == (OLD + YOUNGER, 0, 0, 0))
    return made


def state(nsqd: Nsqd) -> tuple[int, ...]:
    """Depth, in flight, deferred and timed out of the channel."""
    found = nsqd.channel("t", "c")
    names = ("depth", "in_flight_count", "deferred_count", "timeout_count")
    return tuple(found[name] for name in names)


def test_what_is_old_is_in_the_archive_and_what_is_younger_in_the_channel(
    nsqtools_cli: Cli, nsqd: Nsqd, tmp_path: Path
) -> None:
    """An nsqd that does not answer is named, and the others are trimmed."""
    with Raw(nsqd.tcp) as other:
        other.identify()
        other.subscribe("t", "c", ready=1)
        deferred = other.message()
        other.send("RDY 0")
        other.send(f"REQ {deferred.id} 3600000")
        eventually(lambda: state(nsqd) == (OLD + YOUNGER - 1, 0, 1, 0))
    archive = ("--archive", str(tmp_path / "old"), "--json", *http([nsqd]))
    ended = nsqtools_cli(*TRIM, *archive, "--nsqd-http-address", "127.0.0.1:1")
    assert (ended.code, "127.0.0.1:1" in ended.stderr) == (4, True)
    (path,) = (tmp_path / "old").glob("t.c.*.json.gz")
    lines = gzip.decompress(path.read_bytes()).splitlines()
    archived = {json.loads(line)["body"].encode() for line in lines}
    old = {b"old%d" % number for number in range(OLD)} - {deferred.body}
    new = {b"new%03d" % number for number in range(YOUNGER)} - {deferred.body}
    assert archived == old
    (server,) = json.loads(ended.stdout)["servers"]
    assert (server["finished"], server["younger"]) == (len(old), len(new))
    assert state(nsqd) == (len(new), 0, 1, 0)
    assert nsqtools_cli("verify", "--format", "json", str(path)).code == 0
    count = ("-n", str(len(new)), "--format", "%s %a\\n", *at(nsqd))
    tailed = nsqtools_cli("tail", "--topic", "t", "--channel", "c", *count)
    assert sorted(tailed.stdout.splitlines()) == sorted(body + b" 2" for body in new)


def test_what_is_old_is_so_by_the_clock_of_nsqd(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by the clock of this host, which is a year ahead."""
    ahead = 365 * DAY
    monkeypatch.setattr("time.time_ns", lambda: NOW() + ahead)
    age = ["--older-than", "10m", "--yes", "--json"]
    assert exits.run(cli, ["channel", "trim", "t", "c", *age, *http([nsqd])]) == 0
    (server,) = json.loads(capsys.readouterr().out)["servers"]
    assert (server["finished"], server["younger"]) == (OLD, YOUNGER)
    assert state(nsqd) == (YOUNGER, 0, 0, 0)


def test_without_the_clock_of_nsqd_nothing_is_old() -> None:
    node = Node("a:4151", "a:4151")
    with pytest.raises(NSQError, match="nsqd a:4151: its clock is unknown"):
        _marks(Holding(node, given=True), 1.0, 5.0)
    known = Holding(node, given=True, clock=ServerClock(least=10**9, most=3 * 10**9))
    assert _marks(known, 1.0, 5.0) == Marks(7 * 10**9, 6 * 10**9, 8 * 10**9)


def test_a_signal_gives_back_what_is_held(nsqtools_cli: Cli, nsqd: Nsqd) -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Raw(nsqd.tcp) as other:
        other.identify()
        other.subscribe("t", "c", ready=1)
        taken = other.message()
        other.send("RDY 0")
        running = nsqtools_cli.start(*TRIM, "--yes", *http([nsqd]), **pipes)
        younger = YOUNGER - taken.body.startswith(b"new")
        eventually(lambda: state(nsqd) == (0, younger + 1, 0, 0))
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
        finished = OLD + YOUNGER - 1 - younger
        assert out.split()[2:] == [b"%d" % finished, b"%d" % younger]
        assert running.returncode == 130
        other.send(f"REQ {taken.id} 0")
        eventually(lambda: state(nsqd) == (younger + 1, 0, 0, 0))


def test_nothing_is_done_without_consent_or_where_nothing_can_be_trimmed_or_archived(
    nsqtools_cli: Cli, nsqd: Nsqd, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for pauses, options, codes in (
        (False, ("--dry-run",), {0}),
        (False, (), {2}),
        (False, ("--archive", str(tmp_path / "file")), {1, 2}),
        (True, ("--yes",), {1}),
    ):
        if pauses:
            nsqd.pause("t", "c")
        assert nsqtools_cli(*TRIM, *http([nsqd]), *options).code in codes
        assert state(nsqd) == (OLD + YOUNGER, 0, 0, 0)
    absent = ("channel", "trim", "t", "d", "--older-than", "24h", "--yes", *http([nsqd]))
    assert nsqtools_cli(*absent).code == 1
    assert len(nsqd.topic("t")["channels"]) == 1


@pytest.mark.parametrize(
    ("unseen", "clients", "code"), [(0, 0, 0), (3, 0, 0), (4, 0, 4), (4, 1, 0)]
)
def test_what_nobody_else_can_have_taken_is_exit_4(unseen: int, clients: int, code: int) -> None:
    """Of the messages that were not seen, three are deferred or in flight to others."""
    trim: Any = SimpleNamespace(is_flooded=False, unseen=unseen)
    with pytest.raises(Ended) if code else nullcontext() as raised:
        _judge(trim, Loss(in_flight=2, deferred=1, clients=clients))
    assert raised is None or raised.value.exit_code == code
