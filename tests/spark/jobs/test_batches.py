"""The files of batches: how a batch is named, how many tasks write it, and what is removed."""

from pathlib import Path

import pytest

from nsqtools.spark.jobs.batches import named, remove_batch, tasks_for
from nsqtools.spark.source.plans import BatchPlan, Quota

QUERY = "5e0fa0a1-9c1d-4f0b-8a00-0123456789ab"


def plans(*counts: int) -> list[BatchPlan]:
    tasks = tuple((Quota("t", f"db{number}:4150", each),) for number, each in enumerate(counts))
    return [BatchPlan("s", 1, tasks)] if tasks else []


def test_a_batch_is_named_by_its_query_and_its_number() -> None:
    assert named(QUERY, 7) == "5e0fa0a19c1d4f0b-00000007"
    assert named(QUERY, 123_456_789) == "5e0fa0a19c1d4f0b-123456789"
    other = QUERY[:9] + "9c1e" + QUERY[13:]
    assert named(other, 7) != named(QUERY, 7), "ids that begin alike"


@pytest.mark.parametrize(
    ("counts", "tasks"),
    [
        ((), None),
        ((4, 3, 3), 1),
        ((2,) * 300, 1),
        ((10_000, 10_000, 1), 3),
        ((15_000, 100, 100), 2),
        ((250_000, 250_000), 2),
    ],
)
def test_a_batch_has_as_many_tasks_as_its_plan_is_worth(
    counts: tuple[int, ...], tasks: int | None
) -> None:
    assert tasks_for(plans(*counts)) == tasks


def test_of_an_output_only_the_batch_is_removed(tmp_path: Path) -> None:
    for name in ("date=1/hour=1/batch=q-7", "date=2/batch=q-7", "date=2/batch=q-70", "batch=p-7"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "part-00000-000.parquet").touch()
    remove_batch(str(tmp_path), "q-7")
    assert sorted(str(each.parent.relative_to(tmp_path)) for each in tmp_path.rglob("part-*")) == [
        "batch=p-7",
        "date=2/batch=q-70",
    ]
