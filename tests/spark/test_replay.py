from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsqtools.config import ProducerConfig
from nsqtools.errors import (
    ConfigError,
    LockedError,
    PublishError,
    UnreachableError,
)
from nsqtools.names import Address
from nsqtools.sinks.files.locks import Lock
from nsqtools.spark import replay as job
from nsqtools.spark import replayed
from nsqtools.spark.replay import (
    Replayed,
    ReplaySettings,
    _identity,
    is_staged,
    publish,
)
from nsqtools.spark.replayed import State
from tests.support import replays
from tests.support.eventually import eventually
from tests.support.lakes import JSON
from tests.support.replays import HOSTILE, Taken, nothing, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.process import Cli
    from tests.support.servers import Nsqd

QUICK = ProducerConfig(publish_timeout=0.5)


@pytest.fixture
def settings(nsqd: Nsqd, topic: str, tmp_path: Path) -> ReplaySettings:
    return replays.settings(nsqd, topic, tmp_path)


@pytest.fixture
def taken(nsqd: Nsqd, topic: str, nsqtools_cli: Cli) -> Taken:
    return replays.Taken(nsqtools_cli, nsqd, topic)


def staged(settings: ReplaySettings, tmp_path: Path, *parts: Sequence[bytes | None]) -> None:
    """What ``stage`` leaves, without Spark."""
    folder = tmp_path / "staging" / "parts"
    folder.mkdir(parents=True)
    names = []
    for number, bodies in enumerate(parts):
        name = f"part-{number:05}.parquet"
        pq.write_table(pa.table({"body": pa.array(bodies, pa.binary())}), folder / name)
        names.append((name, len(bodies)))
    replayed.save(str(tmp_path / "staging"), State(_identity(settings), names))


class TestPublish:
    def test_parts_are_published_in_their_order_and_then_gone(
        self, settings: ReplaySettings, tmp_path: Path, taken: Taken
    ) -> None:
        bodies = numbered(3000)
        staged(settings, tmp_path, bodies[:1500], [], bodies[1500:], HOSTILE)
        done = publish(settings, threading.Event(), nothing)
        assert done == Replayed(rows=3005, published=3005)
        assert taken() == [*bodies, *HOSTILE]
        assert list((tmp_path / "staging").iterdir()) == []
        assert not is_staged(settings)
        with pytest.raises(ConfigError, match="staging: there is no replay to go on with"):
            publish(settings, threading.Event(), nothing)

    def test_a_run_goes_on_where_the_one_before_was_told_to_end(
        self, settings: ReplaySettings, tmp_path: Path, taken: Taken
    ) -> None:
        bodies = [None, *numbered(4000, 1000), b""]
        staged(settings, tmp_path, bodies[:2500], bodies[2500:])
        runs = []
        for _ in range(100):
            stop = threading.Event()
            runs.append(publish(settings, stop, lambda *_, stop=stop: stop.set()))
            if not runs[-1].stopped:
                break
            assert is_staged(settings)
        assert len(runs) > 4
        assert runs[-1] == Replayed(rows=4002, published=4000, before=runs[-2].published, empty=2)
        assert taken() == numbered(4000, 1000)

    def test_a_run_told_to_end_before_it_began_publishes_nothing(
        self, settings: ReplaySettings, tmp_path: Path, taken: Taken
    ) -> None:
        staged(settings, tmp_path, [b"a"])
        stop = threading.Event()
        stop.set()
        done = publish(settings, stop, nothing)
        assert done == Replayed(rows=1, stopped=True)
        assert done.left == 1
        assert taken() == []
        assert is_staged(settings)

    @pytest.mark.parametrize(("call", "twice"), [(0, True), (1, False), (2, True), (3, True)])
    def test_after_a_crash_one_batch_is_there_twice_and_no_more(
        self,
        settings: ReplaySettings,
        tmp_path: Path,
        taken: Taken,
        monkeypatch: pytest.MonkeyPatch,
        call: int,
        twice: bool,
    ) -> None:
        """The worst moment: nsqd has said OK, and that is not noted yet."""
        bodies = numbered(2000, 1000)
        staged(settings, tmp_path, bodies[:900], bodies[900:])
        calls = iter(range(10**6))

        class KilledError(BaseException):
            pass

        def save(root: str, state: State) -> None:
            if next(calls) == call:
                raise KilledError
            replayed.save(root, state)

        monkeypatch.setattr(job, "save", save)
        with pytest.raises(KilledError):
            publish(settings, threading.Event(), nothing)
        monkeypatch.undo()
        publish(settings, threading.Event(), nothing)
        found = Counter(taken())
        assert set(found) == set(bodies)
        doubles = [body for body, count in found.items() if count > 1]
        assert bool(doubles) == twice, "the second note is of a part that is done"
        assert len(b"".join(doubles)) <= 1 << 20
        assert max(found.values()) <= 2

    def test_a_killed_process_is_continued_by_the_next(
        self, settings: ReplaySettings, nsqd: Nsqd, tmp_path: Path, taken: Taken
    ) -> None:
        bodies = numbered(3000)
        staged(settings, tmp_path, bodies[:1500], bodies[1500:])
        settings = replace(settings, rate=1000.0)
        script = (
            "import threading\n"
            "from nsqtools.config import ProducerConfig\n"
            "from nsqtools.names import Address\n"
            "from nsqtools.spark.replay import ReplaySettings, publish\n"
            f"publish(ReplaySettings({settings.inputs!r}, {settings.topic!r}, "
            f"(Address(*{tuple(nsqd.tcp)!r}),), {settings.staging!r}, ProducerConfig(), "
            "rate=1000.0), threading.Event(), lambda *_: None)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", script])
        try:
            eventually(lambda: nsqd.channel(settings.topic, "c")["depth"] > 300)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        done = publish(replace(settings, rate=0.0), threading.Event(), nothing)
        assert 0 < done.before < done.published == 3000
        found = Counter(taken())
        assert set(found) == set(bodies)
        assert sum(found.values()) - 3000 <= 100, "what a tenth of a second's rate allows"

    def test_what_nsqd_never_takes_is_counted_and_left_out(
        self, settings: ReplaySettings, tmp_path: Path, taken: Taken
    ) -> None:
        config = ProducerConfig(max_msg_size=1000)
        bodies = [b"a", b"x" * 1001, b"b", b"y" * 1001]
        staged(settings, tmp_path, bodies)
        done = publish(replace(settings, config=config), threading.Event(), nothing)
        assert (done.rows, done.published, done.refused, done.empty) == (4, 2, 2, 0)
        assert "message of 1001 bytes: nsqd takes at most 1000" in done.reason
        assert taken() == [b"a", b"b"]

    def test_what_nsqd_refuses_by_its_own_limit_is_left_out_too(
        self, settings: ReplaySettings, tmp_path: Path, taken: Taken
    ) -> None:
        """nsqd's max-msg-size is 1 MiB, and the option here says more."""
        config = ProducerConfig(max_msg_size=2 << 20)
        staged(settings, tmp_path, [b"a", b"x" * ((1 << 20) + 1), b"b"])
        done = publish(replace(settings, config=config), threading.Event(), nothing)
        assert (done.published, done.refused) == (2, 1)
        assert taken() == [b"a", b"b"]

    def test_without_an_nsqd_the_place_is_kept(
        self, settings: ReplaySettings, nsqd: Nsqd, tmp_path: Path
    ) -> None:
        staged(settings, tmp_path, numbered(2000, 1000))

        def gone(*_: object) -> None:
            nsqd.stop()

        with pytest.raises(PublishError, match=r"of 2000 rows are done: run it again to go on"):
            publish(replace(settings, config=QUICK), threading.Event(), gone)
        with pytest.raises(UnreachableError):
            publish(settings, threading.Event(), nothing)
        nsqd.start()
        done = publish(settings, threading.Event(), nothing)
        assert 0 < done.before < done.published == 2000

    def test_a_rate_makes_small_batches(
        self, settings: ReplaySettings, tmp_path: Path, taken: Taken
    ) -> None:
        staged(settings, tmp_path, numbered(300))
        passed = []
        publish(
            replace(settings, rate=1000.0),
            threading.Event(),
            lambda _, done, __: passed.append(done),
        )
        assert passed == [100, 200, 300, 300]
        assert taken() == numbered(300)

    def test_two_runs_at_once_are_refused(self, settings: ReplaySettings, tmp_path: Path) -> None:
        staged(settings, tmp_path, [b"a"])
        path = str(tmp_path / "staging" / "replay.lock")
        with Lock(path), pytest.raises(LockedError, match=f"{path} is locked"):
            publish(settings, threading.Event(), nothing)

    @pytest.mark.parametrize(
        "other",
        [
            {"topic": "other"},
            {"where": "x"},
            {"order_by": "x"},
            {"inputs": ("x",)},
            {"layout": JSON},
        ],
    )
    def test_a_staging_directory_of_another_replay_is_refused(
        self, settings: ReplaySettings, tmp_path: Path, other: dict[str, Any]
    ) -> None:
        staged(settings, tmp_path, [b"a"])
        changed = replace(settings, **other)
        for use in (is_staged, lambda each: publish(each, threading.Event(), nothing)):
            with pytest.raises(ConfigError, match="staging: has a replay of other inputs or opt"):
                use(changed)
        same = replace(settings, rate=5.0, nsqds=(Address("other", 4150),))
        assert is_staged(same), "where and how fast it goes may change"

    def test_a_state_that_is_none_is_named(self, settings: ReplaySettings, tmp_path: Path) -> None:
        staged(settings, tmp_path, [b"a"])
        (tmp_path / "staging" / "replay.json").write_text(json.dumps({"format": "2"}))
        with pytest.raises(ConfigError, match=r"replay\.json: is not a state of replay"):
            is_staged(settings)
