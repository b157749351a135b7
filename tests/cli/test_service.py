"""A command as a service: signals, systemd, and the exit code of a run; in virtual time."""

import asyncio
import errno
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from nsqtools.cli import exits, service
from nsqtools.cli.commands.to_file import choose_topics
from nsqtools.cli.service import consume
from nsqtools.config.connection import ConsumerConfig
from nsqtools.config.consuming import SourceOptions, StopOptions
from nsqtools.config.files import ArchiveSourceOptions
from nsqtools.engine import lookup
from nsqtools.engine.handler import Batch, Handler
from nsqtools.engine.producer import Producer
from nsqtools.errors import ConfigError, NSQError, OutputError
from nsqtools.names import Address
from nsqtools.net.http.daemons import Answers
from nsqtools.policy.stopping import Left
from nsqtools.policy.trim import Marks, Trim
from nsqtools.records.forms import make_writer
from nsqtools.records.layout import Layout
from nsqtools.sinks.files.filesink import FileSink
from nsqtools.sinks.http.httpsink import HttpSink
from nsqtools.sinks.relay.filter import Filter
from nsqtools.sinks.relay.relaysink import RelaySink
from nsqtools.sinks.stdout import StreamSink
from nsqtools.sinks.trimsink import TrimSink
from tests.support.archiving import make_rules
from tests.support.clock import elapse, virtual
from tests.support.delivering import REFUSES, Delivering, Letters
from tests.support.faults import broken
from tests.support.gathering import Gathering, errors, exit_code, refusing, time
from tests.support.scripted import Network, ScriptedNsqd, undisturbed
from tests.support.sinking import InLoop, make_archives


def serve(
    sink: Handler,
    nsqd: ScriptedNsqd,
    *,
    topics: Sequence[str] = ("t",),
    hangup: Any = None,
    **stop: Any,
) -> asyncio.Task[int]:
    """The exit code of a command."""
    source = SourceOptions(topic=tuple(topics), nsqd_tcp_address=(str(nsqd.address),))
    config = ConsumerConfig(max_in_flight=100)
    run = consume(source, "c", config, StopOptions(**stop), sink, hangup=hangup)
    return asyncio.create_task(exit_code(run))


def kill(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("ignored", [False, True])
@virtual
async def test_a_hangup_is_passed_on_once_the_handler_is_open_if_it_was_not_ignored_at_the_start(
    ignored: bool,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = partial(elapse, 10)
    hangups: list[float] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        run = serve(sink, nsqd, hangup=lambda: hangups.append(time()), max_duration=10.0)
        for _ in range(2):
            await elapse(8)
            kill(signal.SIGHUP)
            await elapse(0)
        assert await run == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert hangups == ([] if ignored else [pytest.approx(16)])


@pytest.mark.parametrize(
    ("held", "signals", "code", "said"),
    [
        ("opening", [(5, signal.SIGTERM)], 0, ["open", "close"]),
        ("opening", [(5, signal.SIGHUP)], 0, ["open", "close"]),
        ("opening", [(5, signal.SIGINT)], 130, ["open", "close"]),
        ("draining", [(1, signal.SIGTERM)] * 2, 1, ["open", "drain t", "close at once"]),
        ("draining", [(1, signal.SIGINT)] * 2, 130, ["open", "drain t", "close at once"]),
        # As timeout(1) does, which signals the process, and its group.
        (
            "draining",
            [(1, signal.SIGTERM), (0.05, signal.SIGTERM)],
            0,
            ["open", "drain t", "close"],
        ),
    ],
)
@virtual
async def test_a_signal_ends_an_opening_or_drains_and_a_second_one_drops_what_the_handler_holds(
    monkeypatch: pytest.MonkeyPatch,
    held: str,
    signals: list[tuple[float, int]],
    code: int,
    said: list[str],
) -> None:
    monkeypatch.setattr(os, "_exit", lambda _: pytest.fail("it did not end by itself"))
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"x")
    setattr(sink, held, partial(elapse, 10))
    async with undisturbed():
        run = serve(sink, nsqd)
        for delay, number in signals:
            await elapse(delay)
            kill(number)
        last = time()
        assert await run == code
    assert sink.said == said
    assert (nsqd.dials == []) == (held == "opening")
    at_once = said[-1] == "close at once"
    assert (nsqd.commands[-2:] == ["CLS", "abort"]) == at_once
    assert time() < last + 0.1 or not at_once


@virtual
async def test_a_second_signal_leaves_what_cannot_be_interrupted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    left: list[tuple[float, int]] = []
    monkeypatch.setattr(os, "_exit", lambda code: left.append((time(), code)))

    async def recover() -> None:
        try:
            await elapse(1000)
        except asyncio.CancelledError:
            await elapse(60)

    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = recover
    run = serve(sink, nsqd)
    for _ in range(2):
        await elapse(1)
        kill()
    await elapse(2)
    ((when, code),) = left
    assert (round(when, 1), code) == (2.5, 1)
    assert "\x1b" not in capfd.readouterr().err  # which is no terminal here
    assert await run == 1
    assert sink.said == ["open", "close at once"]
    assert nsqd.dials == []


@virtual
async def test_systemd_is_asked_for_more_time_until_a_topic_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    nsqd, sink = Network().nsqd(), Gathering()
    sink.opening = partial(elapse, 25)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        assert await serve(sink, nsqd, max_duration=10.0) == 0
        told: list[str] = []
        while len(told) < 6:
            told.append(listener.recv(4096).decode())
    more = "EXTEND_TIMEOUT_USEC=30000000\nSTATUS="
    assert [text[: len(more)] for text in told[:3]] == [more] * 3
    assert told[3] == "READY=1"
    assert told[4].startswith("STATUS=")
    assert told[5] == "STOPPING=1"


@virtual
async def test_topics_that_match_come_and_go_as_nsqlookupd_lists_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    sink.stuck = {"t.gone": OutputError("t.gone.log: no space")}
    listed = ["t.gone", "other"]

    async def ask(urls: object, call: Callable[[Any], Awaitable[Any]], **_: object) -> Answers[Any]:
        asked = await call(SimpleNamespace(topics=AsyncMock(return_value=listed)))
        return Answers([(Address("lookupd", 4161), asked)], [])

    monkeypatch.setattr(lookup, "ask_lookupds", ask)
    monkeypatch.setattr(lookup, "producers_at", AsyncMock(return_value=[nsqd.address]))
    source = SourceOptions(topic=("unused",), lookupd_http_address=("lookupd:4161",))
    finding: dict[str, Any] = {"topics": re.compile(r"t\."), "refresh": 1.0}
    config = ConsumerConfig(max_in_flight=100)
    run = consume(source, "c", config, StopOptions(max_duration=200.0), sink, **finding)
    running = asyncio.create_task(exit_code(run))
    await elapse(5)
    listed = ["t.new"]
    assert await running == 1
    assert sink.joined == ["t.gone", "t.new"]
    assert sink.said == ["open", "drain t.gone", "drain t.new", "close"]
    assert errors(caplog) == [
        "topic t.gone: t.gone.log: no space",
        "not completely written: t.gone",
    ]


@virtual
async def test_topics_that_were_never_consumed_are_named_and_make_status_1(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.refuses = refusing("bad")
    sink.unready = {"worse": OutputError("worse.log: Permission denied")}
    assert await serve(sink, nsqd, topics=["bad", "good", "worse"], max_duration=5.0) == 1
    assert errors(caplog)[-1].endswith(": bad worse")


class Acting(Gathering):
    """Does with each message as its body says."""

    async def handle(self, batch: Batch) -> None:
        for message in batch:
            match message.body:
                case b"ok":
                    batch.finish([message])
                case b"lost":
                    self.lost += 1
                    batch.finish([message])
                case b"dead":
                    self.dead_lettered += 1
                    batch.finish([message])
                case b"left":
                    self.left_behind += 1
                    batch.requeue([message], delay=3600, backoff=False)
                case b"failed":
                    batch.requeue([message], delay=3600)


ENDS: dict[str, dict[str, Any]] = {
    "max-duration": {"max_duration": 60.0},
    "idle-timeout": {"idle_timeout": 20.0},
    "until-empty": {"until_empty": True},
    "count": {"max_duration": 60.0},
    "SIGTERM": {},
    "SIGINT": {},
}
BODIES = b"ok", b"lost", b"left", b"failed"
RESULTS = [found for length in range(3) for found in product(BODIES, repeat=length)]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedNsqd]:
    """--until-empty sees what waits in these nsqds, and not what came back: others may take it."""
    nsqds: list[ScriptedNsqd] = []

    async def left(_: lookup.Backlog) -> Left:
        return Left(waiting=sum(nsqd.depth for nsqd in nsqds))

    monkeypatch.setattr(lookup.Backlog, "exists", AsyncMock(return_value=True))
    monkeypatch.setattr(lookup.Backlog, "left", left)
    return nsqds


async def ended_by(end: str, sink: Handler, nsqd: ScriptedNsqd, **stop: Any) -> int:
    """The exit code of a command that this ends."""
    run = serve(sink, nsqd, **ENDS[end] | stop)
    if end.startswith("SIG"):
        await elapse(30)
        kill(signal.Signals[end])
    return await run


@pytest.mark.parametrize("end", ENDS)
@virtual
async def test_the_results_decide_the_exit_code_whatever_ended_the_run(
    end: str, watched: list[ScriptedNsqd]
) -> None:
    for results in RESULTS:
        nsqd, sink = Network().nsqd(), Acting()
        watched[:] = [nsqd]
        nsqd.one_by_one = True
        nsqd.publish(*results)
        stop, done = {}, [body in (b"ok", b"lost") for body in results]
        if end == "count" and any(done):
            stop["count"] = sum(done)
            results = results[: len(done) - done[::-1].index(True)]  # the run sees no others
        code = await ended_by(end, sink, nsqd, **stop)
        last = [body for body in results if body != b"left"][-1:]
        if end == "SIGINT":
            assert code == 130, results
        elif last == [b"failed"]:
            assert code == 1, results
        else:
            assert code == (4 if {b"lost", b"left"} & {*results} else 0), results


class Disk(FileSink):
    """Is full once it is open."""

    def __init__(self, folder: Path, _: Network, **options: Any) -> None:
        archives = make_archives(make_rules(folder, **options), topics=("t",))
        super().__init__(archives, max_in_flight=100, threads=InLoop())

    async def open(self) -> None:
        await super().open()
        self._fault = broken("fsync", errno.ENOSPC)
        self._fault.__enter__()

    async def close(self, *, at_once: bool = False) -> None:
        self._fault.__exit__(None, None, None)
        await super().close(at_once=at_once)


def refusing_endpoint(_: Path, __: Network) -> HttpSink:
    delivering = Delivering()
    delivering.web.ever["a"] = REFUSES
    return delivering.sink


class LostDestination(RelaySink):
    """Its nsqd is gone once it is open."""

    def __init__(self, _: Path, network: Network) -> None:
        self._nsqd = network.nsqd("destination")
        producer = Producer([self._nsqd.address])
        super().__init__(producer, {"t": "T"}, Filter(), Letters(), threads=InLoop())

    async def open(self) -> None:
        await super().open()
        self._nsqd.down = True
        self._nsqd.break_off()


def closed_pipe(_: Path, __: Network) -> StreamSink:
    reader, writer = os.pipe()
    os.close(reader)
    return StreamSink(writer, make_writer(Layout()))


def trimmed_to_full_disk(folder: Path, network: Network) -> TrimSink:
    archive = Disk(folder, network, fail_fast=True)
    marks = {each: Marks(2**62, 2**62, 2**62) for each in network.nsqds}
    trim = Trim(marks, expected=3, patience=60.0, max_younger=1, now=0.0)
    return TrimSink(trim, archive, room=1)


@pytest.mark.parametrize("end", [end for end in ENDS if end != "SIGINT"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Disk, 1),
        (refusing_endpoint, 1),
        (LostDestination, 1),
        (trimmed_to_full_disk, 1),
        (closed_pipe, 141),
    ],
)
@virtual
async def test_an_output_that_never_works_decides_the_exit_code_whatever_ends_the_run(
    make: Callable[[Path, Network], Handler],
    expected: int,
    end: str,
    tmp_path: Path,
    watched: list[ScriptedNsqd],
) -> None:
    network = Network()
    nsqd = network.nsqd()
    watched.append(nsqd)
    nsqd.publish(b"1", b"2", b"3")
    sink = make(tmp_path, network)
    try:
        code = await ended_by(end, sink, nsqd, **({"max_duration": 60.0} | ENDS[end]))
    except NSQError as error:
        code = exits._outcome(error)
    assert code == expected
    assert not any(text.startswith("FIN") for text in nsqd.commands)


@virtual
async def test_each_topic_must_end_well(caplog: pytest.LogCaptureFixture) -> None:
    class Choosy(Gathering):
        async def handle(self, batch: Batch) -> None:
            if batch.topic == "bad":
                batch.requeue(delay=1)

    nsqd = Network().nsqd()
    asyncio.get_running_loop().call_later(1, nsqd.publish, b"1", b"2", b"3", b"4")
    assert await serve(Choosy(), nsqd, topics=["good", "bad"], max_duration=5.0) == 1
    assert errors(caplog)[-1].endswith(": bad")


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([b"ok"] * 3, "3 messages finished"),
        ([b"ok", b"lost", b"dead", b"lost"], "1 message finished, 1 dead-lettered, 2 lost"),
        ([b"lost"], "0 messages finished, 1 lost"),
    ],
)
@virtual
async def test_only_what_is_safe_at_its_destination_counts_as_finished(
    results: Sequence[bytes], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(service, "report_end", ends.append)
    nsqd = Network().nsqd()
    nsqd.publish(*results)
    await serve(Acting(), nsqd, max_duration=5.0)
    assert ends[0].startswith(f"{said}, ")


@pytest.mark.parametrize("name", ["_act", "draining"])
@virtual
async def test_what_is_not_handled_or_drained_in_time_makes_status_1(name: str) -> None:
    nsqd, sink = Network().nsqd(), Gathering()
    nsqd.publish(b"x")
    setattr(sink, name, partial(elapse, 1000))
    assert await serve(sink, nsqd, max_duration=5.0) == 1


def test_named_topics_that_do_not_match_a_pattern_are_left_out() -> None:
    source = ArchiveSourceOptions(
        topic=("orders", "other", "reorder"),
        topic_pattern="order",
        nsqd_tcp_address=("127.0.0.1:4150",),
    )
    assert choose_topics(source) == ["orders", "reorder"]
    assert choose_topics(source.with_values(topic_pattern="^[[:alpha:]]{5}$")) == ["other"]
    with pytest.raises(ConfigError, match="--topic-pattern"):
        choose_topics(source.with_values(topic_pattern="^x"))
    with pytest.raises(ConfigError, match="--topic-pattern needs --lookupd-http-address"):
        source.with_values(topic=()).check_complete()
