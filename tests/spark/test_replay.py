"""How ``replay`` publishes files: in order, and on from where a run has ended."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsqtools.errors import (
    ConfigError,
    LockedError,
    PublishError,
    RecordError,
    UnreachableError,
)
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark.jobs import portions
from nsqtools.spark.jobs.portions import BodyFile, PublishTask
from nsqtools.spark.jobs.replay import Replayed, ReplaySettings, is_planned, plan, publish
from nsqtools.spark.jobs.versions import Versions
from nsqtools.stores.mounted import LocalStore
from tests.support.faults import KilledError
from tests.support.lakes import JSON
from tests.support.replays import HOSTILE, Taken, nothing
from tests.support.servers import Nsqd
from tests.support.streaming import numbered

LARGE = [body + bytes(1000) for body in numbered(2000)]
CHUNK = 100_000


class Archive:
    """An archive in ``lake``, and its replay into a topic."""

    def __init__(self, settings: ReplaySettings, taken: Taken, folder: Path) -> None:
        self.settings, self.taken, self.lake = settings, taken, folder / "lake"
        self.staging = Path(settings.staging)

    def write(self, *files: Sequence[bytes | None]) -> None:
        """Write the archive, and the plan to publish it as it is."""
        self.lake.mkdir()
        for number, bodies in enumerate(files):
            table = pa.table({"body": pa.array(bodies, pa.binary())})
            pq.write_table(table, self.lake / f"{number}.parquet", row_group_size=700)
        assert plan(self.settings)

    def publish(
        self,
        report: Callable[..., None] = nothing,
        *,
        stop: threading.Event | None = None,
        rate: float = 0.0,
        **sink: str,
    ) -> Replayed:
        """Publish it, with these options of the sink, in which __ stands for a dot."""
        given = {name.replace("__", "."): text for name, text in sink.items()}
        settings = replace(self.settings, rate=rate, sink={**self.settings.sink, **given})
        return publish(settings, stop or threading.Event(), report)


@pytest.fixture
def archive(replaying: ReplaySettings, taken: Taken, tmp_path: Path) -> Archive:
    return Archive(replaying, taken, tmp_path)


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each MPUB has about 100 of the large messages."""
    monkeypatch.setattr(portions, "_CHUNK_BYTES", CHUNK)


def test_an_archive_is_published_as_it_is_and_the_plan_is_then_gone(archive: Archive) -> None:
    bodies = numbered(3000)
    archive.write(bodies[:1500], [], bodies[1500:], HOSTILE)
    done = archive.publish(rate=1e9)
    assert done == Replayed(rows=3005, published=3005)
    assert archive.taken() == [*bodies, *HOSTILE], "with a rate one after another"
    assert list(archive.staging.iterdir()) == []
    assert not is_planned(archive.settings)
    with pytest.raises(ConfigError, match="staging"):
        archive.publish()


def test_files_are_divided_into_portions_of_about_a_size() -> None:
    found = [BodyFile(str(number), 1, (1 << 19) + 1, 0) for number in range(9)]
    assert [len(each) for each in portions.divided(found, whole=False)] == [2, 2, 2, 2, 1]
    assert portions.divided(found, whole=True) == [tuple(found)]


def test_a_run_goes_on_where_the_one_before_was_told_to_end(
    archive: Archive, chunked: None
) -> None:
    bodies = [None, *LARGE, *LARGE, b""]
    archive.write(bodies[:2500], bodies[2500:])
    stop = threading.Event()
    stop.set()
    assert archive.publish(stop=stop) == Replayed(rows=4002, stopped=True)
    runs = []
    for _ in range(100):
        stop = threading.Event()
        runs.append(archive.publish(lambda *_, stop=stop: stop.set(), stop=stop))
        if not runs[-1].stopped:
            break
        assert is_planned(archive.settings)
    assert len(runs) > 4
    assert runs[-1] == Replayed(rows=4002, published=4000, before=runs[-2].published, empty=2)
    assert sorted(archive.taken()) == sorted([*LARGE, *LARGE])


@pytest.mark.parametrize("call", range(6))
def test_after_a_crash_no_more_messages_are_there_twice_than_the_next_run_tells(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, call: int, chunked: None
) -> None:
    """Whatever is under way when a position cannot be noted any more."""
    archive.write(LARGE[:900], LARGE[900:])
    calls = iter(range(10**6))

    def save(versions: Versions, value: object) -> None:
        if next(calls) == call:
            raise KilledError
        saved(versions, value)

    saved: Any = Versions.save
    with monkeypatch.context() as patch:
        patch.setattr(Versions, "save", save)
        with pytest.raises(KilledError):
            archive.publish()
    done = archive.publish()
    found = Counter(archive.taken())
    assert set(found) == set(LARGE)
    assert found.total() - len(LARGE) <= done.again <= 2 * CHUNK // 1000
    assert bool(done.again) == bool(call)
    assert max(found.values()) <= 2


def test_an_attempt_that_another_one_has_continued_does_not_go_on(
    archive: Archive, chunked: None
) -> None:
    archive.write(LARGE)
    stop = threading.Event()

    def reports(*_: object) -> None:
        """While nothing is under way but what is noted."""
        if not stop.is_set():
            stop.set()
            (folder,) = (archive.staging / "positions").glob("*/0")
            versions = Versions(LocalStore(str(folder.parent)), "0")
            versions.save(versions.load())

    with pytest.raises(LockedError, match="another run"):
        archive.publish(reports)
    assert 0 < len(archive.taken()) < len(LARGE) / 2


def test_tasks_publish_and_end_when_they_are_told_to(archive: Archive, nsqd: Nsqd) -> None:
    archive.write(LARGE[:1000], LARGE[1000:])
    store = LocalStore(archive.settings.staging)
    chosen = json.loads(store.get("replay.json"))
    mine = [tuple(BodyFile(*each) for each in portion) for portion in chosen["portions"]]
    task = PublishTask(archive.settings.staging, chosen["folder"], archive.settings.sink)
    store.put(portions.STOP, b"")
    slow = replace(task, rate=0.01)
    assert list(slow(enumerate(mine))) == []
    store.delete(portions.STOP)
    (error,) = replace(task, sink={**task.sink, "nsqd.tcp.addresses": "127.0.0.1:1"})(
        enumerate(mine)
    )
    assert "127.0.0.1:1" in error
    assert store.get(portions.STOP) == b"", "the others need not try"
    store.delete(portions.STOP)
    assert list(task(enumerate(mine))) == []
    assert sorted(archive.taken()) == sorted(LARGE)


@pytest.mark.parametrize(
    ("allowed", "size"),
    [(1000, 1001), (2 << 20, (1 << 20) + 1)],
    ids=["by its option", "by nsqd's own limit, of 1 MiB"],
)
def test_what_nsqd_never_takes_is_counted_and_left_out(
    archive: Archive, allowed: int, size: int
) -> None:
    archive.write([b"a", b"x" * size, b"b", b"y" * size])
    done = archive.publish(nsq__max_msg_size=str(allowed))
    assert (done.rows, done.published, done.refused, done.empty) == (4, 2, 2, 0)
    assert done.reason
    assert archive.taken() == [b"a", b"b"]


def test_without_an_nsqd_the_position_is_kept(archive: Archive, nsqd: Nsqd, chunked: None) -> None:
    archive.write(LARGE)

    def gone(*_: object) -> None:
        nsqd.stop()

    with pytest.raises(PublishError, match=r" of 2000 rows "):
        archive.publish(gone, nsq__publish_timeout="500ms")
    with pytest.raises(UnreachableError):
        archive.publish()
    nsqd.start()
    done = archive.publish()
    assert 0 < done.before < done.published == 2000


def test_a_rate_makes_small_batches(archive: Archive) -> None:
    archive.write(numbered(300))
    passed = []
    archive.publish(lambda _, done, __: passed.append(done), rate=1000.0)
    assert passed == [100, 200, 300]
    assert archive.taken() == numbered(300)


def test_a_staging_of_another_run_or_replay_or_without_a_plan_is_refused(archive: Archive) -> None:
    archive.write([b"a"])
    path = str(archive.staging / "lock")
    with Lock(path), pytest.raises(LockedError, match=path):
        archive.publish()
    others: list[dict[str, Any]] = [
        *({"sink": {"topic": "other"}}, {"where": "x"}, {"order_by": "x"}),
        *({"inputs": ("x",)}, {"layout": JSON}),
    ]
    for other in others:
        changed = replace(archive.settings, **other)
        for use in (is_planned, lambda each: publish(each, threading.Event(), nothing)):
            with pytest.raises(ConfigError, match=archive.settings.staging):
                use(changed)
    same = replace(archive.settings, rate=5.0, sink={"topic": archive.settings.sink["topic"]})
    assert is_planned(same), "where and how fast it goes may change"
    for text in ('{"format": "nsqtools replay 2"}', "[]", ""):
        (archive.staging / "replay.json").write_text(text)
        with pytest.raises(ConfigError, match=r"replay\.json"):
            is_planned(archive.settings)


def test_parquet_that_cannot_be_published_is_named_before_anything_is(
    archive: Archive, tmp_path: Path
) -> None:
    """Also one that has changed since the plan."""
    path = tmp_path / "x.parquet"
    others = replace(archive.settings, inputs=(str(path),))
    for column in ({"n": [1]}, {"body": [1]}):
        pq.write_table(pa.table(column), path)
        with pytest.raises(ConfigError, match=r"x\.parquet: .*body"):
            plan(others)
    path.write_bytes(b"PAR1")
    with pytest.raises(RecordError, match=r"x\.parquet: "):
        plan(others)
    archive.write([b"a"])
    pq.write_table(pa.table({"body": ["b", "c"]}), archive.lake / "0.parquet")
    with pytest.raises(RecordError, match=r"0\.parquet: changed"):
        archive.publish()
    assert archive.taken() == []
