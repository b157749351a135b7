"""How ``replay`` publishes what is staged: in order, and on from where a run has ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsqtools.config import ProducerConfig
from nsqtools.errors import ConfigError, LockedError, PublishError, UnreachableError
from nsqtools.names import Address
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.jobs import replay as job
from nsqtools.spark.jobs import replayed
from nsqtools.spark.jobs.replay import Replayed, ReplaySettings, is_staged, publish
from tests.support.eventually import eventually
from tests.support.lakes import JSON
from tests.support.replays import HOSTILE, Taken, nothing
from tests.support.streaming import numbered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nsqtools.spark.jobs.replayed import ReplayState
    from nsqtools.spark.jobs.versions import Versions
    from tests.support.servers import Nsqd

LARGE = [body + bytes(1000) for body in numbered(2000)]


class Staged(Protocol):
    def __call__(self, *parts: Sequence[bytes | None]) -> None: ...


@pytest.fixture
def staged(replaying: ReplaySettings, tmp_path: Path) -> Staged:
    """Makes what ``stage`` leaves, as any version of it does."""

    def make(*parts: Sequence[bytes | None]) -> None:
        folder = tmp_path / "staging" / "parts"
        folder.mkdir(parents=True)
        names = [f"part-{number:05}.parquet" for number in range(len(parts))]
        for name, bodies in zip(names, parts, strict=True):
            pq.write_table(pa.table({"body": pa.array(bodies, pa.binary())}), folder / name)
        chosen = {"inputs": [str(tmp_path / "lake")], "topic": replaying.topic, "where": ""}
        state = {
            "format": "nsqtools replay 1",
            "settings": {**chosen, "order_by": "", "layout": None},
            "parts": [(name, len(bodies)) for name, bodies in zip(names, parts, strict=True)],
        }
        (tmp_path / "staging/replay.json").write_text(json.dumps(state))

    return make


def test_parts_are_published_in_their_order_and_then_gone(
    replaying: ReplaySettings, staged: Staged, tmp_path: Path, taken: Taken
) -> None:
    bodies = numbered(3000)
    staged(bodies[:1500], [], bodies[1500:], HOSTILE)
    done = publish(replaying, threading.Event(), nothing)
    assert done == Replayed(rows=3005, published=3005)
    assert taken() == [*bodies, *HOSTILE]
    assert list((tmp_path / "staging").iterdir()) == []
    assert not is_staged(replaying)
    with pytest.raises(ConfigError, match="staging"):
        publish(replaying, threading.Event(), nothing)


def test_a_run_goes_on_where_the_one_before_was_told_to_end(
    replaying: ReplaySettings, staged: Staged, taken: Taken
) -> None:
    bodies = [None, *LARGE, *LARGE, b""]
    staged(bodies[:2500], bodies[2500:])
    stop = threading.Event()
    stop.set()
    assert publish(replaying, stop, nothing) == Replayed(rows=4002, stopped=True)
    runs = []
    for _ in range(100):
        stop = threading.Event()
        runs.append(publish(replaying, stop, lambda *_, stop=stop: stop.set()))
        if not runs[-1].stopped:
            break
        assert is_staged(replaying)
    assert len(runs) > 4
    assert runs[-1] == Replayed(rows=4002, published=4000, before=runs[-2].published, empty=2)
    assert taken() == [*LARGE, *LARGE]


@pytest.mark.parametrize(("call", "twice"), [(0, True), (1, False), (2, True), (3, True)])
def test_after_a_crash_one_batch_is_there_twice_and_no_more(
    replaying: ReplaySettings,
    staged: Staged,
    taken: Taken,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
    twice: bool,
) -> None:
    """The worst moment: nsqd has said OK, and that is not noted yet."""
    staged(LARGE[:900], LARGE[900:])
    calls = iter(range(10**6))

    class KilledError(BaseException):
        pass

    def save(versions: Versions, state: ReplayState) -> None:
        if next(calls) == call:
            raise KilledError
        replayed.save(versions, state)

    monkeypatch.setattr(job, "save", save)
    with pytest.raises(KilledError):
        publish(replaying, threading.Event(), nothing)
    monkeypatch.undo()
    publish(replaying, threading.Event(), nothing)
    found = Counter(taken())
    assert set(found) == set(LARGE)
    doubles = [body for body, count in found.items() if count > 1]
    assert bool(doubles) == twice, "the second note is of a part that is done"
    assert len(b"".join(doubles)) <= 1 << 20
    assert max(found.values()) <= 2


PUBLISH = """
import sys, threading
from nsqtools.config import ProducerConfig
from nsqtools.names import Address
from nsqtools.spark.jobs.replay import ReplaySettings, publish
lake, topic, nsqd, staging = sys.argv[1:]
settings = ReplaySettings(
    (lake,), topic, (Address.parse(nsqd),), staging, ProducerConfig(), rate=1000.0
)
publish(settings, threading.Event(), lambda *_: None)
"""


def test_a_killed_process_is_continued_by_the_next(
    replaying: ReplaySettings, staged: Staged, nsqd: Nsqd, taken: Taken
) -> None:
    bodies = numbered(1500)
    staged(bodies[:700], bodies[700:])
    where = (*replaying.inputs, replaying.topic, str(nsqd.tcp), replaying.staging)
    process = subprocess.Popen([sys.executable, "-c", PUBLISH, *where])
    try:
        eventually(lambda: nsqd.channel(replaying.topic, "c")["depth"] > 100)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = publish(replaying, threading.Event(), nothing)
    assert 0 < done.before < done.published == 1500
    found = Counter(taken())
    assert set(found) == set(bodies)
    assert found.total() - 1500 <= 100, "what a tenth of a second's rate allows"


@pytest.mark.parametrize(
    ("allowed", "size"),
    [(1000, 1001), (2 << 20, (1 << 20) + 1)],
    ids=["by its option", "by nsqd's own limit, of 1 MiB"],
)
def test_what_nsqd_never_takes_is_counted_and_left_out(
    replaying: ReplaySettings, staged: Staged, taken: Taken, allowed: int, size: int
) -> None:
    staged([b"a", b"x" * size, b"b", b"y" * size])
    chosen = replace(replaying, config=ProducerConfig(max_msg_size=allowed))
    done = publish(chosen, threading.Event(), nothing)
    assert (done.rows, done.published, done.refused, done.empty) == (4, 2, 2, 0)
    assert done.reason
    assert taken() == [b"a", b"b"]


def test_without_an_nsqd_the_place_is_kept(
    replaying: ReplaySettings, staged: Staged, nsqd: Nsqd
) -> None:
    staged(LARGE)

    def gone(*_: object) -> None:
        nsqd.stop()

    quick = replace(replaying, config=ProducerConfig(publish_timeout=0.5))
    with pytest.raises(PublishError, match=r" of 2000 rows "):
        publish(quick, threading.Event(), gone)
    with pytest.raises(UnreachableError):
        publish(replaying, threading.Event(), nothing)
    nsqd.start()
    done = publish(replaying, threading.Event(), nothing)
    assert 0 < done.before < done.published == 2000


def test_a_rate_makes_small_batches(
    replaying: ReplaySettings, staged: Staged, taken: Taken
) -> None:
    staged(numbered(300))
    passed = []
    publish(
        replace(replaying, rate=1000.0), threading.Event(), lambda _, done, __: passed.append(done)
    )
    assert passed == [100, 200, 300, 300]
    assert taken() == numbered(300)


def test_two_runs_at_once_are_refused(
    replaying: ReplaySettings, staged: Staged, tmp_path: Path
) -> None:
    staged([b"a"])
    path = str(tmp_path / "staging" / "lock")
    with Lock(path), pytest.raises(LockedError, match=path):
        publish(replaying, threading.Event(), nothing)


@pytest.mark.parametrize(
    "other",
    [{"topic": "other"}, {"where": "x"}, {"order_by": "x"}, {"inputs": ("x",)}, {"layout": JSON}],
)
def test_a_staging_directory_of_another_replay_is_refused(
    replaying: ReplaySettings, staged: Staged, other: dict[str, Any]
) -> None:
    staged([b"a"])
    changed = replace(replaying, **other)
    for use in (is_staged, lambda each: publish(each, threading.Event(), nothing)):
        with pytest.raises(ConfigError, match=replaying.staging):
            use(changed)
    same = replace(replaying, rate=5.0, nsqds=(Address("other", 4150),))
    assert is_staged(same), "where and how fast it goes may change"


@pytest.mark.parametrize("text", ['{"format": "2"}', '{"format": "nsqtools replay 1"}', "[]", ""])
def test_a_state_that_is_none_is_named(
    replaying: ReplaySettings, staged: Staged, tmp_path: Path, text: str
) -> None:
    staged([b"a"])
    (tmp_path / "staging" / "replay.json").write_text(text)
    with pytest.raises(ConfigError, match=r"replay\.json"):
        is_staged(replaying)
