"""What the directories of batches are called, and which of them a batch is in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nsqtools.spark.outputs import hours, named
from nsqtools.spark.progress import Written

if TYPE_CHECKING:
    from pathlib import Path

QUERY = "5e0fa0a1-9c1d-4f0b-8a00-0123456789ab"


def test_a_batch_is_named_by_its_query_and_its_number() -> None:
    assert named(QUERY, 7) == "5e0fa0a19c1d4f0b-00000007"
    assert named(QUERY, 123_456_789) == "5e0fa0a19c1d4f0b-123456789"


def test_queries_whose_ids_begin_alike_have_other_names() -> None:
    other = QUERY[:9] + "9c1e" + QUERY[13:]
    assert named(other, 7) != named(QUERY, 7)


def test_a_batch_is_in_the_days_from_its_oldest_to_its_newest_message(tmp_path: Path) -> None:
    for name in ("20/hour=23", "21/hour=00", "21/hour=01", "22/hour=00", "22/hour=x"):
        (tmp_path / f"date=2026-11-{name}").mkdir(parents=True)
    (tmp_path / "_nsqtools").mkdir()

    def of(*times: str) -> set[str]:
        oldest, newest = (datetime.fromisoformat(each).replace(tzinfo=UTC) for each in times)
        written = Written(2, oldest.timestamp(), newest.timestamp())
        return {str(each.relative_to(tmp_path))[13:] for each in hours(tmp_path, written)}

    assert of("2026-11-21T00:59", "2026-11-21T01:00") == {"21/hour=00", "21/hour=01"}
    assert of("2026-11-20T23:59", "2026-11-21T00:00") == {"20/hour=23", "21/hour=00", "21/hour=01"}
    assert list(hours(tmp_path, Written(0))) == []
