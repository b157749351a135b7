"""The source without a JVM: what it plans, what it reads, and what it reads again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from nsqtools.errors import ConfigError, OutputError
from nsqtools.spark.rows import ROW_SCHEMA
from nsqtools.spark.source.datasource import SCHEMA, NsqDataSource
from nsqtools.spark.source.plans import Offset
from nsqtools.spark.source.receive import receive
from nsqtools.spark.source.source import NsqStreamReader
from nsqtools.spark.source.stagingreader import StagingReader
from nsqtools.spark.staging.log import StaleError
from nsqtools.spark.staging.partitions import Claim
from tests.support.driving import ALL, Driven
from tests.support.eventually import eventually
from tests.support.ledgers import bodies_of, claim_of
from tests.support.servers import drained, free_port
from tests.support.streaming import numbered, source

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.spark.rows import Segment
    from tests.support.servers import Nsqd


@pytest.fixture
def driven(nsqd: Nsqd, topic: str, tmp_path: Path) -> Driven:
    return Driven(nsqd, topic, source(nsqd, topic, tmp_path / "staging"))


def test_a_stream_has_an_id_of_its_own_or_goes_on_with_what_one_of_its_name_has_staged(
    driven: Driven,
) -> None:
    offset = driven.reader.initialOffset()
    assert driven.reader.initialOffset() == offset
    assert (offset["batch"], offset["plan"]) == (0, "")
    assert driven.anew().reader.initialOffset()["stream"] != offset["stream"]
    driven.publish(5)
    first = driven.anew(streamName="mine")
    start, done, _ = first.first(ReadMaxRows(2))
    assert start == Offset("mine", 0).to_json()
    planned = first.plan(done, ReadMaxRows(2))
    first.reader.commit(done)
    rows = first.read(done, planned)
    driven.nsqd.empty(driven.topic, "c")
    again = first.anew()
    assert again.reader.initialOffset() == Offset("mine", 1).to_json()
    last, batches = again.drain()
    assert batches == [rows]
    again.reader.commit(last)
    assert first.anew().reader.initialOffset() == Offset("mine", 2).to_json()


def test_batches_have_messages_up_to_the_limit_which_connections_share(driven: Driven) -> None:
    driven = driven.anew(maxMessagesPerTrigger="100", connectionsPerNsqd="3")
    limit = driven.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(100)
    assert driven.anew(maxMessagesPerTrigger="0").reader.getDefaultReadLimit() == ALL
    start = driven.reader.initialOffset()
    assert driven.plan(start) == start
    driven.publish(250)
    assert len(driven.reader.partitions(start, driven.plan(start, limit))) == 3
    assert driven.reader.reportLatestOffset() == {"backlog": 150, "notes": []}
    _, batches = driven.drain(start, limit)
    assert [len(rows) for rows in batches] == [100, 100, 50]
    assert bodies_of(*batches) == Counter(numbered(250))
    origins = {(row["topic"], row["channel"], row["nsqd"]) for row in batches[0]}
    assert origins == {(driven.topic, "c", str(driven.nsqd.tcp))}
    assert drained(driven.nsqd, driven.topic, "c")


@pytest.mark.parametrize("by_commit", [False, True])
def test_a_batch_is_the_same_whoever_plans_or_reads_it_until_it_is_committed(
    driven: Driven, by_commit: bool
) -> None:
    """By the commit, or else by the next run, which begins after it."""
    driven.publish(20)
    start, first, rows = driven.first(ReadMaxRows(10))
    second = driven.plan(first, ReadMaxRows(7))
    driven.publish(20, 30)
    killed = driven.anew()  # before Spark has noted any of it
    assert killed.plan(start) == first
    assert killed.read(start, first) == driven.read(start, first) == rows
    assert killed.plan(first) == second
    more = killed.read(first, second)
    if by_commit:
        killed.reader.commit(first)
    else:
        assert driven.anew().plan(first) == second
    assert driven.ledger(second).rows() == len(more) == 7
    with pytest.raises(StaleError):
        driven.read(start, first)
    _, batches = driven.anew().drain(first)
    assert batches[0] == more
    assert bodies_of(rows, *batches) == Counter(numbered(30))


def test_a_new_checkpoint_is_refused_while_the_staging_has_messages_of_another(
    driven: Driven,
) -> None:
    driven.publish(10)
    start, end, rows = driven.first()
    with pytest.raises(OutputError, match=f"10 messages of another .*{start['stream']}"):
        driven.anew().plan()
    staged = StagingReader(driven.options["stagingLocation"])
    found = [
        row
        for partition in staged.partitions()
        for batch in staged.read(partition)
        for row in batch.to_pylist()
    ]
    assert found == [row | {"channel": ""} for row in rows]
    driven.reader.commit(end)
    assert driven.anew().plan()["batch"] == 0


def test_a_batch_under_way_is_not_read_without_what_another_staging_has_of_it(
    driven: Driven, tmp_path: Path
) -> None:
    """It goes on with the old one; once it is committed the staging may be another."""
    driven.publish(100)
    start, end, rows = driven.first()
    elsewhere = {"stagingLocation": str(tmp_path / "elsewhere")}
    with pytest.raises(OutputError, match="staged elsewhere"):
        driven.anew(**elsewhere).read(start, end)
    again = driven.anew()
    assert again.read(start, end) == rows
    driven.publish(100, 150)
    last, batches = driven.anew(**elsewhere).drain(end)
    assert bodies_of(rows, *batches) == Counter(numbered(150))
    assert again.plan(last) == last


def test_available_now_takes_what_was_there_also_if_a_partition_did_not_get_it(
    driven: Driven,
) -> None:
    driven.publish(40)
    driven.reader.prepareForTriggerAvailableNow()
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    taken = driven.anew().first(ReadMaxRows(30))[2]
    rows = driven.read(start, end)
    assert (len(taken), len(rows)) == (30, 10)
    driven.publish(40, 90)
    end, batches = driven.drain(end, ReadMaxRows(20))
    assert [len(each) for each in batches] == [20, 10]
    assert driven.depth == 20
    driven.reader.prepareForTriggerAvailableNow()
    assert [len(each) for each in driven.drain(end)[1]] == [20]


@pytest.mark.parametrize("available_now", [True, False])
def test_an_nsqd_that_gave_nothing_ends_a_run_and_rests_in_a_stream(
    driven: Driven, available_now: bool
) -> None:
    driven.publish(10)
    if available_now:
        driven.reader.prepareForTriggerAvailableNow()
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    driven.nsqd.empty(driven.topic, "c")
    assert driven.read(start, end) == []
    driven.publish(7)
    assert driven.plan(end) == end
    if not available_now:
        eventually(lambda: driven.plan(end) != end)
        assert len(driven.read(end, driven.plan(end))) == 7


@pytest.mark.parametrize("available_now", [True, False])
def test_what_comes_again_and_is_staged_is_no_reason_to_end_or_to_rest(
    driven: Driven, monkeypatch: pytest.MonkeyPatch, available_now: bool
) -> None:
    driven.publish(10)
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    driven.reader.partitions(start, end)
    (quotas,) = (plan := driven.ledger(end).expect(Offset.from_json(end))).tasks
    claim = claim_of(driven.ledger(end), plan, 0)
    assert isinstance(claim, Claim)
    add = claim.add

    def staged_and_given_back(segment: Segment) -> None:
        add(segment)
        raise OutputError("as it were, killed")

    monkeypatch.setattr(claim, "add", staged_and_given_back)
    with pytest.raises(OutputError, match="as it were"):
        receive(quotas, driven.settings, claim)
    eventually(lambda: driven.depth == 10)
    assert bodies_of(driven.read(start, end)) == Counter(numbered(10))
    driven.publish(10, 30)
    again = driven.anew()
    if available_now:
        again.reader.prepareForTriggerAvailableNow()
    end, batches = again.drain(end, ReadMaxRows(5))
    assert [len(each) for each in batches] == [0, 0, 5, 5, 5, 5]
    assert bodies_of(*batches) == Counter(numbered(10, 30))
    assert drained(driven.nsqd, driven.topic, "c")


@pytest.mark.parametrize("available_now", [True, False])
def test_what_went_wrong_on_executors_is_told_by_the_driver(
    driven: Driven, available_now: bool
) -> None:
    """By a batch that is there only to tell of the one before, if no other one would come."""
    driven.publish(10)
    hidden = f"127.0.0.1:{free_port()}"
    driven = driven.anew(nsqd__tcp__addresses=f"{hidden}/{driven.nsqd.http.port}")
    if available_now:
        driven.reader.prepareForTriggerAvailableNow()
        end, batches = driven.drain()
        assert batches == [[], []]
    else:
        _, end, rows = driven.first()
        assert rows == []
    assert driven.plan(end) == end
    (note,) = driven.reader.reportLatestOffset()["notes"]
    assert hidden in note


def test_a_staging_that_cannot_work_is_said_before_a_message_moves(driven: Driven) -> None:
    driven.publish(10)
    with pytest.raises(ConfigError, match="/proc/no"):
        driven.anew(stagingLocation="/proc/no/such").plan()
    assert driven.depth == 10


def test_readers_are_given_only_where_they_make_sense(tmp_path: Path) -> None:
    found = NsqDataSource({"subscribe": "t", "channel": "c", "staginglocation": str(tmp_path)})
    assert found.schema() == SCHEMA
    schema = from_arrow_schema(ROW_SCHEMA)
    assert isinstance(found.streamReader(schema), NsqStreamReader)
    with pytest.raises(ConfigError, match="readStream"):
        found.reader(schema)
    with pytest.raises(ConfigError, match="schema"):
        found.streamReader(StructType().add("body", "binary"))
    with pytest.raises(ConfigError, match="channel"):
        NsqDataSource({"subscribe": "t"}).schema()
