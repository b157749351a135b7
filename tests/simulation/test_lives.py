"""Lives of whole commands in a simulated world; each seed is another one.

``pytest tests/simulation --seed N -s -n 0`` prints the lives of a seed event by event, one of each
kind; ``--lives 1000`` lives so many new ones of each kind, which ``--seed``, as it has printed,
repeats;
``python -m tests.simulation.shrink KIND N`` leaves out the faults that a failure does not need.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsqtools.sinks.files.workfile import WorkFile
from nsqtools.sinks.relay.work import Work
from tests.simulation.consumers import FileLife
from tests.simulation.inhabitants import live
from tests.simulation.plans import KINDS, plan_of
from tests.simulation.world import ViolationError
from tests.support.binaries import give_up
from tests.support.spark import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MEMORY = "/dev/shm"
PLAIN = 5
"""Lives of each kind in a plain run."""
FEWER = {"redrive": 3}
"""Those of kinds whose lives are long."""
MORE = 8
HEALTHY = (
    *(("tail", seed) for seed in (18, 24, 25)),
    *(("relay", seed) for seed in (13, 52)),
    *(("to-file", seed) for seed in (18, 30)),
)
"""Lives in which one nsqd fails and another must be consumed all the time."""
LISTED = (("redrive", 9), ("redrive", 12))
"""Lives with nsqlookupds: the first ones of this kind have none."""

APART = dict.fromkeys(KINDS, 1) | {"tail": 3, "to-http": 4, "relay": 3, "to-file": 4}
"""Seeds of lives in which the clock of the host is wrong by 40 days."""

REGRESSIONS = (
    ("to-file", 60, "a completed file was continued while its hook copied it: messages came twice"),
    ("to-file", 1177, "the same file was then removed by its hook: messages were lost"),
    ("to-file", 2848508359, "a cut member of an empty file passed for damage: exit 1"),
    ("to-file", 31, "a file deleted after its upload came back with the power, and stayed"),
    ("staging", 45, "a file without a name stayed open if its name could not be removed"),
    ("tail", 37, "what waited for a slow reader timed out, and was written again"),
    ("until-empty", 16, "exit 0 although an nsqd could not be asked"),
    ("count", 6, "exit 0 although nsqd had refused the FINs"),
    ("count", 2156, "exit 0 although nsqd hung before it had read the last FINs"),
    ("count", 2736, "the same, with nsqds that nsqlookupd lists"),
    ("count", 252, "the same, and it was given up as silent before the end"),
    ("pub", 25, "an nsqd that hung kept pub from the healthy one for 20 s"),
    ("redrive", 135, "exit 0 after one wrong number of messages"),
    ("to-http", 7006, "a dead letter was written twice: close reported an error after fsync"),
    ("to-file", 7072, "threads stayed at the end: close of a lock file reported an error"),
    ("redrive", 6016, "exit 0 although an nsqd that it could not reach had letters"),
    ("redrive-dir", 874, "lines of a killed writer were published, and gone with the power"),
    ("redrive-dir", 48295, "the same, and others in their place were never published"),
    ("library", 0, "a Consumer never opened its handler"),
    ("library", 7, "nor did it close the handler when it was cancelled"),
    ("library", 160, "nor when no server answered at the start"),
)
"""Kind and seed of lives that have failed, and what they found."""


def _keep_what_is_cut_back(patch: pytest.MonkeyPatch) -> None:
    """to-file writes what it could not sync, and has requeued, with the next records."""
    cut_back = WorkFile.cut_back

    def kept(file: WorkFile) -> None:
        data = file._data[:]
        cut_back(file)
        file._data += data

    patch.setattr(WorkFile, "cut_back", kept)


def _publish_what_came_again_twice(patch: pytest.MonkeyPatch) -> None:
    """relay does."""
    publish = Work._publish

    async def twice(work: Work, lots: Any) -> bool:
        again = any(message.attempts > 1 for lot in lots for message in lot.messages)
        return await publish(
            work, [lot._replace(bodies=[*lot.bodies] * (1 + again)) for lot in lots]
        )

    patch.setattr(Work, "_publish", twice)


MISTAKES: tuple[tuple[str, int, Callable[[pytest.MonkeyPatch], None]], ...] = (
    ("to-file", 48, _keep_what_is_cut_back),
    ("to-file", 52, _keep_what_is_cut_back),
    ("relay", 5, _publish_what_came_again_twice),
    ("relay", 15, _publish_what_came_again_twice),
)
"""Lives that must notice a mistake: messages then come more often than faults excuse."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The lives of the seeds of this run."""
    if metafunc.function is not test_whatever_happens_the_invariants_hold:
        return
    lives = metafunc.config.option.lives
    more = pytest.mark.full("more lives")
    if lives or _is_chosen(metafunc.config):
        first = metafunc.config.option.seed
        given = [
            pytest.param(kind, seed)
            for kind in KINDS
            for seed in range(first, first + (lives or 1))
        ]
    else:
        given = [
            pytest.param(kind, seed, marks=[more] if seed >= FEWER.get(kind, PLAIN) else [])
            for kind in KINDS
            for seed in range(PLAIN + MORE)
        ]
        given += [
            pytest.param(kind, seed, id=f"{kind}-{seed}-again")
            for kind, seed in (*HEALTHY, *LISTED, *((kind, seed) for kind, seed, _ in REGRESSIONS))
        ]
    metafunc.parametrize(("kind", "seed"), given)


def _is_chosen(config: pytest.Config) -> bool:
    """Whether the user has named a seed: each run has one."""
    return any(str(each).startswith("--seed") for each in config.invocation_params.args)


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where there is such a place: lives write thousands of files."""
    where = _MEMORY if os.access(_MEMORY, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder)


def _needs_packages(kind: str) -> None:
    for package in PACKAGES if kind == "staging" else ():
        if find_spec(package) is None:
            give_up(package, "lives of the staging", f"no package {package}", "TOOLS")


def test_whatever_happens_the_invariants_hold(
    kind: str, seed: int, memory_path: Path, request: pytest.FixtureRequest
) -> None:
    _needs_packages(kind)
    talk = _is_chosen(request.config) and not request.config.option.lives
    live(plan_of(seed, kind), memory_path, talk=talk)


@pytest.mark.parametrize("days", [-40.0, 40.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_host_is_40_days_from_nsqd(kind: str, days: float, memory_path: Path) -> None:
    """``-k 40_days -s -n 0`` prints how these lives end."""
    _needs_packages(kind)
    plan = replace(plan_of(APART[kind], kind), ahead=days)
    ends = [line for line in live(plan, memory_path).events if " exit " in line or "again" in line]
    print(
        f"\n{kind}, {plan.style or 'plain'}, seed {plan.seed}, {days:+g} days:",
        *ends[-2:],
        sep="\n",
    )


@pytest.mark.parametrize(("kind", "seed", "mistake"), MISTAKES)
def test_a_mistake_is_noticed(
    kind: str,
    seed: int,
    mistake: Callable[[pytest.MonkeyPatch], None],
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mistake(monkeypatch)
    with pytest.raises(ViolationError, match="came again"):
        live(plan_of(seed, kind), memory_path)


@pytest.mark.parametrize("seed", [7, 14])
def test_no_clock_that_jumps_makes_a_file_old(
    seed: int, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--max-age`` no life is long enough to delete what it completed."""
    argv = FileLife.argv
    more = ["--max-age", "3h", "--keep", "1000"]
    monkeypatch.setattr(FileLife, "argv", lambda life, number: [*argv(life, number), *more])
    live(plan_of(seed, "to-file"), memory_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_is_the_same_life(kind: str, memory_path: Path) -> None:
    _needs_packages(kind)

    def told(folder: Path) -> list[str]:
        folder.mkdir()
        events = live(plan_of(4, kind), folder).events
        return [line.replace(str(folder), "") for line in events]

    assert told(memory_path / "a") == told(memory_path / "b")
