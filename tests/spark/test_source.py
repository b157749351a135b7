"""The source without a JVM: what it plans, what it reads, and what it reads again.

More than 400 lines: planning and reading share the reader that is driven as Spark does.
"""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from nsqtools.errors import ConfigError, OutputError, UnreachableError
from nsqtools.spark.ledger import Claim, Ledger, StaleError
from nsqtools.spark.options import parse_source
from nsqtools.spark.plans import Offset
from nsqtools.spark.receive import receive
from nsqtools.spark.source import SCHEMA, NsqDataSource, NsqStreamReader
from nsqtools.spark.stores import make_store
from tests.support.eventually import eventually
from tests.support.ledgers import counts
from tests.support.servers import drained, free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyarrow import RecordBatch

    from tests.support.servers import Nsqd

    Json = dict[str, Any]

ALL = ReadAllAvailable()
NONE: Mapping[str, str] = {}


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % each for each in range(*numbers)]


def publish(nsqd: Nsqd, topic: str, bodies: list[bytes]) -> None:
    """Publish, and wait until the channel has it all."""
    nsqd.create(topic, "lake")
    before = nsqd.channel(topic, "lake")["message_count"]
    nsqd.publish(topic, bodies)
    count = before + len(bodies)
    eventually(lambda: nsqd.channel(topic, "lake")["message_count"] == count)


def options(
    nsqd: Nsqd, topic: str, staging: Path | str, more: Mapping[str, str] = NONE
) -> dict[str, str]:
    return {
        "nsqd.tcp.addresses": f"{nsqd.tcp}/{nsqd.http.port}",
        "subscribe": topic,
        "channel": "lake",
        "stagingLocation": str(staging),
        "pollIntervalMs": "1",
        "connectionsPerNsqd": "1",
        "idleTimeoutMs": "300",
        **more,
    }


class Driven:
    """A reader that is driven as Spark does, without a JVM."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options, self.staging = options, options["stagingLocation"]
        self.settings = parse_source(options)
        self.reader = NsqStreamReader(self.settings)

    def plan(self, start: Json, limit: Any = ALL) -> Json:
        return self.reader.latestOffset(start, limit)

    def read(self, start: Json, end: Json) -> list[Json]:
        """What executors read: each partition by a copy of its own."""
        rows = []
        for partition in self.reader.partitions(start, end):
            executor, sent = pickle.loads(pickle.dumps((self.reader, partition)))
            rows += [row for batch in executor.read(sent) for row in batch.to_pylist()]
        return rows

    def drain(self, start: Json, limit: Any = ALL) -> tuple[Json, list[list[Json]]]:
        """All batches until there is nothing to read."""
        batches = []
        while (end := self.plan(start, limit)) != start:
            batches.append(self.read(start, end))
            start = end
        return start, batches

    def ledger(self, offset: Json) -> Ledger:
        return Ledger(*make_store(self.staging), offset["stream"])


@pytest.fixture
def driven(nsqd: Nsqd, topic: str, tmp_path: Path) -> Driven:
    return Driven(options(nsqd, topic, tmp_path / "staging"))


def bodies_of(rows: Iterable[Any]) -> Counter[bytes]:
    return Counter(bytes(row["body"]) for row in rows)


def count_of(offset: Json) -> int:
    return sum(quota.count for quota in Offset.from_json(offset).quotas)


def test_a_stream_has_an_id_of_its_own_that_is_minted_once(
    driven: Driven, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    first = driven.reader.initialOffset()
    assert driven.reader.initialOffset() == first
    other = Driven(options(nsqd, topic, tmp_path / "staging")).reader.initialOffset()
    assert other["stream"] != first["stream"]
    assert (first["batch"], first["quotas"]) == (0, [])


def test_a_stream_that_has_a_name_goes_on_with_what_one_of_that_name_has_staged(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    named = options(nsqd, topic, tmp_path / "staging", {"streamName": "mine"})
    publish(nsqd, topic, numbered(5))
    first = Driven(named)
    start = first.reader.initialOffset()
    assert start == Offset("mine", 0, ()).to_json()
    done = first.plan(start, ReadMaxRows(2))
    first.read(start, done)
    left = first.plan(done, ReadMaxRows(2))
    rows = first.read(done, left)
    nsqd.empty(topic, "lake")
    again = Driven(named)
    assert again.reader.initialOffset() == Offset("mine", 1, ()).to_json()
    start, batches = again.drain(again.reader.initialOffset())
    assert batches == [rows]
    assert Driven(named).reader.initialOffset() == Offset("mine", 2, ()).to_json()


def test_nothing_to_read_is_no_batch(driven: Driven) -> None:
    start = driven.reader.initialOffset()
    assert driven.plan(start) == start


def test_batches_are_as_large_as_the_limit(driven: Driven, nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(250))
    _, batches = driven.drain(driven.reader.initialOffset(), ReadMaxRows(100))
    assert [len(rows) for rows in batches] == [100, 100, 50]
    assert bodies_of(row for rows in batches for row in rows) == Counter(numbered(250))
    assert drained(nsqd, topic, "lake")


def test_the_limit_is_that_of_the_options(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    def limit(**more: str) -> Any:
        return Driven(options(nsqd, topic, tmp_path, more)).reader.getDefaultReadLimit()

    assert limit() == ReadAllAvailable()
    assert limit(maxMessagesPerTrigger="0") == ReadAllAvailable()
    assert limit(maxMessagesPerTrigger="7") == ReadMaxRows(7)


def test_connections_share_the_messages_of_an_nsqd(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    driven = Driven(options(nsqd, topic, tmp_path, {"connectionsPerNsqd": "3"}))
    publish(nsqd, topic, numbered(100))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    assert len(end["quotas"]) == 3
    assert bodies_of(driven.read(start, end)) == Counter(numbered(100))


def test_a_batch_is_the_same_whoever_reads_it_and_however_often(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(100))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    rows = driven.read(start, end)
    publish(nsqd, topic, numbered(100, 200))
    again = Driven(options(nsqd, topic, driven.staging))
    assert driven.read(start, end) == rows
    assert again.read(start, end) == rows
    assert bodies_of(rows) == Counter(numbered(100))


def test_what_is_committed_is_removed_before_the_next_plan(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(10))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    driven.read(start, end)
    assert counts(driven.ledger(end), 1, 1) == [10]
    assert driven.plan(end) == end
    assert counts(driven.ledger(end), 1, 1) == [0]
    with pytest.raises(StaleError):
        driven.read(start, end)


def test_commit_removes_what_it_names(driven: Driven, nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, numbered(10))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    driven.read(start, end)
    driven.reader.commit(end)
    assert counts(driven.ledger(end), 1, 1) == [0]


def test_a_batch_whose_offset_was_lost_is_planned_as_it_was_staged(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(10))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    rows = driven.read(start, end)
    publish(nsqd, topic, numbered(10, 30))
    restarted = Driven(options(nsqd, topic, driven.staging))
    assert restarted.plan(start) == end
    assert restarted.read(start, end) == rows
    assert count_of(restarted.plan(end)) == 20


@pytest.mark.parametrize("known", [False, True])
def test_a_batch_under_way_is_not_read_without_what_another_staging_has_of_it(
    driven: Driven, nsqd: Nsqd, topic: str, tmp_path: Path, known: bool
) -> None:
    """It goes on with the old one; once it is committed the staging may be another."""
    publish(nsqd, topic, numbered(100))
    start = driven.reader.initialOffset()
    elsewhere = options(nsqd, topic, tmp_path / "elsewhere")
    if known:  # the stream was there before
        end = Driven(elsewhere).plan(start, ReadMaxRows(30))
        rows = Driven(elsewhere).read(start, end)
        start = end
    else:
        rows = []
    end = driven.plan(start)
    rows += driven.read(start, end)
    with pytest.raises(OutputError, match="the batch under way is staged elsewhere"):
        Driven(elsewhere).read(start, end)
    again = Driven(options(nsqd, topic, driven.staging))
    assert again.read(start, end) == rows[30 if known else 0 :]
    publish(nsqd, topic, numbered(100, 150))
    moved = Driven(elsewhere)
    last, batches = moved.drain(end)
    assert bodies_of([*rows, *batches[0]]) == Counter(numbered(150))
    assert again.plan(last) == last


def test_a_batch_that_spark_does_not_know_yet_is_there_before_it_does(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    """Killed between the two, it plans the same one."""
    publish(nsqd, topic, numbered(10))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    driven.ledger(end).expect(Offset.from_json(end))
    publish(nsqd, topic, numbered(10, 20))
    assert Driven(driven.options).plan(start) == end


def test_available_now_takes_what_was_there_and_ends(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(25))
    driven.reader.prepareForTriggerAvailableNow()
    start = driven.reader.initialOffset()
    end = driven.plan(start, ReadMaxRows(10))
    rows = driven.read(start, end)
    publish(nsqd, topic, numbered(25, 100))
    end, batches = driven.drain(end, ReadMaxRows(10))
    assert [len(each) for each in batches] == [10, 5]
    assert len(rows) == 10
    assert nsqd.channel(topic, "lake")["depth"] == 75
    driven.reader.prepareForTriggerAvailableNow()
    _, batches = driven.drain(end)
    assert [len(each) for each in batches] == [75]


def test_available_now_goes_on_with_what_a_partition_did_not_get(
    driven: Driven, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, numbered(400))
    driven.reader.prepareForTriggerAvailableNow()
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    other = Driven(options(nsqd, topic, tmp_path / "staging"))
    other_start = other.reader.initialOffset()
    taken = other.read(other_start, other.plan(other_start, ReadMaxRows(300)))
    rows = driven.read(start, end)
    assert (len(taken), len(rows)) == (300, 100)
    publish(nsqd, topic, numbered(400, 900))
    _, batches = driven.drain(end)
    assert [len(each) for each in batches] == [300]
    assert nsqd.channel(topic, "lake")["depth"] == 200


def test_available_now_ends_when_an_nsqd_gives_nothing(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(10))
    driven.reader.prepareForTriggerAvailableNow()
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    nsqd.empty(topic, "lake")
    assert driven.read(start, end) == []
    publish(nsqd, topic, numbered(10))
    assert driven.plan(end) == end


def test_a_stream_lets_an_nsqd_that_gave_nothing_rest_before_it_asks_again(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(10))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    nsqd.empty(topic, "lake")
    assert driven.read(start, end) == []
    publish(nsqd, topic, numbered(7))
    assert driven.plan(end) == end
    eventually(lambda: driven.plan(end) != end)
    assert len(driven.read(end, driven.plan(end))) == 7


class Unfinished:
    """A claim whose messages are given back to nsqd after they were counted."""

    def __init__(self, claim: Claim) -> None:
        self.rows = claim.rows
        self.staged = claim.staged
        self._add = claim.add

    def add(self, rows: RecordBatch) -> None:
        self._add(rows)
        raise OutputError("as it were, killed")


def batch_that_comes_again(driven: Driven, nsqd: Nsqd, topic: str) -> Json:
    """Ten messages that were staged, and read, and are in nsqd still."""
    publish(nsqd, topic, numbered(10))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    driven.reader.partitions(start, end)
    claim = driven.ledger(end).claim(1, 0)
    assert isinstance(claim, Claim)
    with pytest.raises(OutputError, match="as it were"):
        receive(Offset.from_json(end).quotas[0], driven.settings, Unfinished(claim))  # type: ignore[arg-type]
    eventually(lambda: nsqd.channel(topic, "lake")["depth"] == 10)
    assert bodies_of(driven.read(start, end)) == Counter(numbered(10))
    return end


def test_what_comes_again_and_is_staged_is_no_reason_to_end(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    end = batch_that_comes_again(driven, nsqd, topic)
    publish(nsqd, topic, numbered(10, 30))
    again = Driven(driven.options)
    again.reader.prepareForTriggerAvailableNow()
    end, batches = again.drain(end, ReadMaxRows(5))
    assert [len(each) for each in batches] == [0, 0, 5, 5, 5, 5]
    assert bodies_of(row for each in batches for row in each) == Counter(numbered(10, 30))
    assert drained(nsqd, topic, "lake")


def test_a_stream_does_not_rest_when_what_came_was_staged_before(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    end = batch_that_comes_again(driven, nsqd, topic)
    publish(nsqd, topic, numbered(10, 20))
    second = driven.plan(end, ReadMaxRows(10))
    assert driven.read(end, second) == []
    third = driven.plan(second)
    assert third != second
    assert bodies_of(driven.read(second, third)) == Counter(numbered(10, 20))


def test_what_went_wrong_on_executors_is_told_by_the_driver(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, numbered(10))
    hidden = f"127.0.0.1:{free_port()}"
    where = {"nsqd.tcp.addresses": f"{hidden}/{nsqd.http.port}"}
    driven = Driven(options(nsqd, topic, tmp_path / "staging", where))
    driven.reader.prepareForTriggerAvailableNow()
    start = driven.reader.initialOffset()
    end, batches = driven.drain(start)
    assert batches == [[], []]  # the second is there to tell of the first
    note = f"{hidden}: topic {topic}: cannot be reached: connection refused"
    assert driven.reader.reportLatestOffset()["notes"] == [note]
    assert driven.plan(end) == end


def test_a_stream_that_goes_on_makes_no_batch_only_to_tell(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, numbered(10))
    where = {"nsqd.tcp.addresses": f"127.0.0.1:{free_port()}/{nsqd.http.port}"}
    driven = Driven(options(nsqd, topic, tmp_path / "staging", where))
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    assert driven.read(start, end) == []
    assert driven.plan(end) == end
    assert len(driven.reader.reportLatestOffset()["notes"]) == 1


def test_the_backlog_is_what_no_batch_is_planned_for(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    publish(nsqd, topic, numbered(30))
    driven.plan(driven.reader.initialOffset(), ReadMaxRows(10))
    assert driven.reader.reportLatestOffset() == {"backlog": 20, "notes": []}


def test_a_checkpoint_of_another_source_is_refused(driven: Driven) -> None:
    with pytest.raises(ConfigError, match="use a new checkpoint directory"):
        driven.plan({"logOffset": 3})


def test_that_nobody_answers_is_said_when_a_batch_is_planned(
    driven: Driven, nsqd: Nsqd, topic: str
) -> None:
    nsqd.stop()
    driven.reader.prepareForTriggerAvailableNow()
    with pytest.raises(UnreachableError, match="no nsqd answers"):
        driven.plan(driven.reader.initialOffset())


@pytest.mark.parametrize(
    ("location", "text"),
    [("s3a://bucket/x", "nsqtools pipeline compact"), ("/proc/no/such", "staging /proc")],
)
def test_a_staging_that_cannot_work_is_said_before_a_message_moves(
    nsqd: Nsqd, topic: str, location: str, text: str
) -> None:
    publish(nsqd, topic, numbered(10))
    driven = Driven(options(nsqd, topic, location))
    with pytest.raises(ConfigError, match=text):
        driven.plan(driven.reader.initialOffset())
    assert nsqd.channel(topic, "lake")["depth"] == 10


def test_readers_are_given_only_where_they_make_sense(tmp_path: Path) -> None:
    given = {"subscribe": "t", "channel": "c", "staginglocation": str(tmp_path)}
    source = NsqDataSource(given)
    assert source.schema() == SCHEMA
    assert isinstance(source.streamReader(SCHEMA), NsqStreamReader)
    with pytest.raises(ConfigError, match=r"use readStream, .* or nsqtools pipeline"):
        source.reader(SCHEMA)
    with pytest.raises(ConfigError, match=r"leave out \.schema\(\)"):
        source.streamReader(StructType().add("body", "binary"))
    with pytest.raises(ConfigError, match="option channel is required"):
        NsqDataSource({"subscribe": "t"}).schema()
