"""One run at a time on a place in a store without locks."""

import json
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nsqtools.errors import ConfigError, LockedError
from nsqtools.spark.jobs import guard
from nsqtools.spark.jobs.guard import Lease, only_one
from nsqtools.stores.mounted import LocalStore
from tests.support.eventually import eventually
from tests.support.faults import broken


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


def test_a_run_that_ended_or_was_killed_on_this_machine_is_followed_at_once(
    tmp_path: Path,
) -> None:
    store = LocalStore(str(tmp_path))
    held(store).release()
    killed = held(store)
    assert store.list("runs").count("renewed") == 1
    killed._end.set()
    killed._thread.join()
    content = json.loads(store.get("runs/renewed"))
    content["processes"] = [[content["processes"][0][0], "0"]]  # this pid, of an earlier process
    store.put("runs/renewed", json.dumps(content).encode())
    held(store).release()


def test_of_runs_that_begin_together_one_goes_on(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    held(store).release()
    begin = threading.Barrier(8)

    def run(lease: Lease) -> Lease | None:
        begin.wait()
        with suppress(LockedError):
            lease.acquire()
            return lease
        return None

    with ThreadPoolExecutor(8) as threads:
        found = threads.map(run, [Lease(store) for _ in range(8)])
    (lease,) = filter(None, found)
    lease.check()
    lease.release()


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


def test_a_directory_on_this_machine_has_a_lock_and_the_rights_that_the_umask_leaves(
    tmp_path: Path,
) -> None:
    place, mask = tmp_path / "lake" / "checkpoint", os.umask(0o022)
    try:
        with only_one(str(place)):
            rights = [stat.S_IMODE(each.stat().st_mode) for each in (place, place.parent)]
            with pytest.raises(LockedError), only_one(str(place)):
                raise AssertionError
    finally:
        os.umask(mask)
    assert rights == [0o755] * 2
    assert not place.parent.exists()


def test_a_store_that_refuses_this_run_at_its_start_is_a_wrong_option(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with (
        pytest.raises(ConfigError, match=f"^--output {bucket}/x: "),
        only_one(f"{bucket}/x", "--output"),
    ):
        pass
