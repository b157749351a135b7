"""One run at a time on a place in a store without locks."""

from __future__ import annotations

import json
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.errors import ConfigError, LockedError
from nsqtools.spark.jobs import guard
from nsqtools.spark.jobs.guard import Lease, only_one
from nsqtools.stores.mounted import LocalStore
from tests.support.eventually import eventually
from tests.support.faults import broken

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_RENEW_INTERVAL", 0.01)
    monkeypatch.setattr(guard, "_LOOK", 0.001)


def foreign(store: LocalStore, **changed: Any) -> None:
    """The newest run is one on another machine."""
    content = json.loads(store.get("runs/renewed"))
    content |= {"kernel": "another", "host": "there", **changed}
    store.put("runs/renewed", json.dumps(content).encode())


def held(store: LocalStore) -> Lease:
    lease = Lease(store)
    lease.acquire()
    return lease


def test_a_run_that_ended_makes_room_for_the_next_one(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for number in (1, 2, 3):
        held(store).release()
        assert store.list("runs") == [f"{number:010d}", "renewed"] or len(store.list("runs")) == 2


def test_a_run_that_renews_its_entry_is_not_disturbed(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    lease = held(store)
    lease._facts |= {"kernel": "another", "host": "there"}
    eventually(lambda: json.loads(store.get("runs/renewed"))["host"] == "there")
    with pytest.raises(LockedError, match="there"):
        Lease(store).acquire()
    lease.check()
    lease.release()
    held(store).release()


def test_a_run_that_is_not_renewed_is_taken_over_and_stops_when_it_wakes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path))
    asleep, awake = threading.Event(), threading.Event()
    sleeper = Lease(store)
    renew = sleeper._renew

    def late(*, ended: bool = False) -> None:
        if sleeper._beat:
            asleep.set()
            awake.wait()
        renew(ended=ended)

    monkeypatch.setattr(sleeper, "_renew", late)
    sleeper.acquire()
    asleep.wait()
    foreign(store)
    monkeypatch.setattr(guard, "_LEASE", 0.0)
    second = held(store)
    awake.set()
    stop = threading.Event()
    sleeper.stops(stop)
    eventually(stop.is_set)
    with pytest.raises(LockedError):
        sleeper.check()
    sleeper.release()
    second.check()
    second.release()


def test_a_run_that_was_killed_on_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    first = held(store)
    first._end.set()
    first._thread.join()
    content = json.loads(store.get("runs/renewed"))
    content["processes"] = [[content["processes"][0][0], "0"]]  # this pid, of an earlier process
    store.put("runs/renewed", json.dumps(content).encode())
    held(store).release()


def test_of_runs_that_begin_together_one_goes_on(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    held(store).release()
    leases = [Lease(store) for _ in range(8)]
    begin = threading.Barrier(len(leases))
    results: list[Lease] = []

    def run(lease: Lease) -> None:
        begin.wait()
        try:
            lease.acquire()
        except LockedError:
            return
        results.append(lease)

    threads = [threading.Thread(target=run, args=[lease]) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 1
    results[0].check()
    results[0].release()


def test_a_run_that_cannot_renew_its_entry_stops_before_another_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guard._PATIENCE + guard._RENEW_INTERVAL < guard._LEASE
    monkeypatch.setattr(guard, "_PATIENCE", 0.05)
    store = LocalStore(str(tmp_path))
    lease = held(store)

    stop = threading.Event()
    lease.stops(stop)
    with broken("put", of=store):
        eventually(stop.is_set)
        with pytest.raises(LockedError):
            lease.check()
        lease.release()


def test_a_directory_on_this_machine_has_a_lock(tmp_path: Path) -> None:
    place = str(tmp_path / "a" / "b")
    with only_one(place), pytest.raises(LockedError), only_one(place):
        raise AssertionError
    assert not (tmp_path / "a").exists()


def test_the_umask_alone_says_who_may_read_the_directories_of_a_run(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        with only_one(str(tmp_path / "lake/checkpoint"), "--checkpoint"):
            folders = [tmp_path / "lake", tmp_path / "lake/checkpoint"]
            assert [stat.S_IMODE(each.stat().st_mode) for each in folders] == [0o755] * 2
    finally:
        os.umask(mask)


def test_a_store_that_refuses_this_run_at_its_start_is_a_wrong_option(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with (
        pytest.raises(ConfigError, match=f"^--output {bucket}/x: "),
        only_one(f"{bucket}/x", "--output"),
    ):
        pass
