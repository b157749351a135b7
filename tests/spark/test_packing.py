"""Batches of many topics: few tasks, small offsets, few requests, and each message once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from nsqtools.errors import OutputError
from nsqtools.spark.source.plans import BatchPlan, Offset, Quota
from nsqtools.spark.source.receive import receive
from nsqtools.spark.source.sourceoptions import parse_source
from nsqtools.spark.staging.ledger import Ledger
from nsqtools.spark.staging.log import EntryKind
from nsqtools.spark.staging.partitions import Claim
from nsqtools.stores import open_store
from tests.support import wire
from tests.support.counting import CountingNsqd
from tests.support.driving import Driven
from tests.support.eventually import eventually
from tests.support.ledgers import STREAM, bodies_of, claim_of, segment
from tests.support.proxy import Faults, Proxy
from tests.support.servers import drained, free_port
from tests.support.streaming import numbered, publish, source

if TYPE_CHECKING:
    from pathlib import Path

    from nsqtools.spark.rows import Segment
    from tests.support.minio import Minio
    from tests.support.servers import MakeNsqd, Nsqd

TOPICS = 40
EACH = 5


class Many:
    """Topics with messages of their own on one nsqd."""

    def __init__(self, nsqd: Nsqd, topic: str) -> None:
        self.nsqd = nsqd
        self.topics = [f"{topic}.{number}" for number in range(TOPICS)]
        self.bodies: list[bytes] = []

    def publish(self, *counts: int) -> None:
        """So many messages each; EACH for topics without a count."""
        for number, topic in enumerate(self.topics):
            count = counts[number] if number < len(counts) else EACH
            bodies = [b"%d-%d" % (number, len(self.bodies) + each) for each in range(count)]
            publish(self.nsqd, topic, bodies)
            self.bodies += bodies

    def driven(self, staging: str | Path, **more: str) -> Driven:
        given = source(self.nsqd, ",".join(self.topics), staging, **{"partitions": "2", **more})
        return Driven(self.nsqd, self.topics[0], given)

    def check(self, *parts: list[dict[str, Any]]) -> None:
        assert bodies_of(*parts) == Counter(self.bodies)
        for number, topic in enumerate(self.topics):
            bodies = [row["body"] for part in parts for row in part if row["topic"] == topic]
            assert all(body.startswith(b"%d-" % number) for body in bodies)
            assert drained(self.nsqd, topic, "c")


@pytest.fixture
def many(nsqd: Nsqd, topic: str) -> Many:
    return Many(nsqd, topic)


def test_many_topics_are_few_tasks_and_few_segments_and_an_offset_names_their_plan(
    many: Many, tmp_path: Path
) -> None:
    many.publish()
    driven = many.driven(tmp_path / "staging")
    start, end, rows = driven.first()
    assert len(driven.reader.partitions(start, end)) == 2
    assert len(json.dumps(end)) < 200
    many.check(rows)
    entries = list((tmp_path / "staging").rglob("p0*/0*"))
    assert len(entries) < TOPICS
    assert driven.anew().read(start, end) == rows
    last = driven.plan(end)
    assert last == end


def test_an_attempt_goes_on_with_what_an_earlier_one_has_staged_of_each_topic(
    many: Many, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many.publish(30)
    driven = many.driven(tmp_path / "staging", partitions="1")
    start = driven.reader.initialOffset()
    end = driven.plan(start)
    plan = driven.ledger(end).expect(Offset.from_json(end))
    claim = claim_of(driven.ledger(end), plan, 0)
    assert isinstance(claim, Claim)
    add, added = claim.add, Counter[str]()

    def killed_at_the_third(segment: Segment) -> None:
        add(segment)
        added.update(segment.keys["topic"].to_pylist())
        if len(added) > 2:
            raise OutputError("as it were, killed")

    monkeypatch.setattr(claim, "add", killed_at_the_third)
    with pytest.raises(OutputError, match="as it were"):
        receive(plan.tasks[0], driven.settings, claim)
    again = claim_of(driven.ledger(end), plan, 0)
    assert isinstance(again, Claim)
    assert Counter({topic: n for (topic, _), n in again.adopted().items()}) == added
    many.publish()
    rows = driven.read(start, end)
    assert len(rows) == plan.messages
    end, batches = driven.drain(end)
    many.check(rows, *batches)


async def test_a_lost_connection_ends_its_task_and_what_was_not_asked_is_not_silent(
    many: Many, tmp_path: Path
) -> None:
    many.publish(400)
    faults = [Faults(cut_down_after=3000)]
    async with Proxy(many.nsqd.tcp, faults) as proxy:
        place = {"nsqd__tcp__addresses": f"{proxy.address}/{many.nsqd.http.port}"}
        driven = many.driven(
            tmp_path / "staging", partitions="1", maxInFlight="200", nsq__msg_timeout="1s", **place
        )

        def drive() -> None:
            driven.reader.prepareForTriggerAvailableNow()
            _, end, rows = driven.first()
            plan = driven.ledger(end).expect(Offset.from_json(end))
            (sealed,) = driven.ledger(end).complete(plan)
            assert sealed
            assert not sealed.ending.settled
            assert sum(sealed.ending.rows) == sealed.ending.rows[0] == len(rows) < 400
            assert set(sealed.ending.silent) <= {0}
            end, batches = driven.drain(end)
            eventually(
                lambda: (
                    not any(
                        many.nsqd.channel(topic, "c")["in_flight_count"] for topic in many.topics
                    )
                )
            )
            driven.reader.prepareForTriggerAvailableNow()
            many.check(rows, *batches, *driven.drain(end)[1])

        await asyncio.to_thread(drive)


def test_all_topics_on_an_nsqd_that_cannot_be_reached_are_given_up_with_their_first_batch(
    many: Many, tmp_path: Path
) -> None:
    """Each quota of these is received alone, so the later ones find the nsqd unreachable."""
    many.publish()
    hidden = {"nsqd__tcp__addresses": f"127.0.0.1:{free_port()}/{many.nsqd.http.port}"}
    driven = many.driven(tmp_path / "staging", maxInFlight="1", **hidden)
    driven.reader.prepareForTriggerAvailableNow()
    end, _ = driven.drain()
    assert end["batch"] == 2, "the second, without messages, is for the notes"


async def test_while_a_topic_stalls_its_task_stages_no_more_than_max_in_flight(
    tmp_path: Path,
) -> None:
    """So the messages whose FINs nsqd may not have processed are among the last rows."""

    class Stalling(CountingNsqd):
        def __init__(self) -> None:
            super().__init__()
            self.sent: Counter[asyncio.StreamWriter] = Counter()

        def on_ready(self, count: int, writer: asyncio.StreamWriter) -> None:
            for _ in range(min(count, 10 - self.sent[writer])):
                writer.write(wire.message(self.sent[writer]))
                self.sent[writer] += 1

        def on_close(self, writer: asyncio.StreamWriter) -> None:
            if self.topics[writer] != "t0":
                super().on_close(writer)

    async with Stalling() as nsqd:
        quotas = tuple(Quota(f"t{number}", str(nsqd.address), 10) for number in range(30))
        plan = BatchPlan(STREAM, 1, (quotas,))
        ledger = Ledger(open_store(str(tmp_path)), STREAM)
        ledger.prepare(plan)
        claim = claim_of(ledger, plan, 0)
        assert isinstance(claim, Claim)
        given = {"subscribe": "t", "channel": "c", "stagingLocation": "/unused"}
        settings = parse_source({**given, "maxInFlight": "50"})
        ending = await asyncio.to_thread(receive, quotas, settings, claim)
    assert not ending.settled
    assert ending.rows[0] == 10
    assert sum(ending.rows) <= 50


def test_an_nsqd_that_cannot_be_reached_keeps_no_other_from_being_read(
    many: Many, make_nsqd: MakeNsqd, tmp_path: Path
) -> None:
    many.publish()
    other = make_nsqd()
    publish(other, many.topics[0], [b"hidden"])
    hidden = f"127.0.0.1:{free_port()}"
    places = f"{hidden}/{other.http.port},{many.nsqd.tcp}/{many.nsqd.http.port}"
    driven = many.driven(tmp_path / "staging", partitions="1", nsqd__tcp__addresses=places)
    driven.reader.prepareForTriggerAvailableNow()
    _, batches = driven.drain()
    many.check(*batches)
    assert any(hidden in note for note in driven.reader.reportLatestOffset()["notes"])


def test_a_batch_waits_for_messages_but_not_longer_than_the_delay(driven: Driven) -> None:
    driven = driven.anew(minMessagesPerTrigger="10", maxTriggerDelay="1h")
    driven.publish(5)
    _, end, rows = driven.first()  # the first one does not wait
    assert len(rows) == 5
    driven.publish(5, 14)
    assert driven.plan(end) == end
    driven.publish(14, 15)
    end = driven.plan(start := end)
    assert len(driven.read(start, end)) == 10
    driven.publish(15, 16)
    assert driven.plan(end) == end
    driven.reader.prepareForTriggerAvailableNow()
    assert driven.plan(end) != end
    hasty = driven.anew(
        maxTriggerDelay="0s", stagingLocation=f"{driven.options['stagingLocation']}2"
    )
    assert hasty.plan(end) != end


@pytest.fixture
def driven(nsqd: Nsqd, topic: str, tmp_path: Path) -> Driven:
    return Driven(nsqd, topic, source(nsqd, topic, tmp_path / "staging"))


def old_segment(*numbers: int) -> list[pa.Buffer]:
    """A segment of an earlier version, which had no columns for topic and nsqd."""
    found = segment(*numbers)
    keys = found.keys.select(["message_id", "timestamp_ns"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_batch(keys)
    return [sink.getvalue(), found.serialise()[1]]


def test_a_batch_of_an_earlier_version_is_finished(driven: Driven) -> None:
    """One of its partitions is sealed, the other one was begun."""
    driven.publish(1)
    nsqd = str(driven.nsqd.tcp)
    quotas = [{"topic": driven.topic, "nsqd": nsqd, "count": count} for count in (3, 2)]
    start = {"stream": STREAM, "batch": 0, "quotas": []}
    end = {"stream": STREAM, "batch": 1, "quotas": quotas}
    ledger = driven.ledger(end)
    ledger.store.put_if_absent(f"{STREAM}/b{1:010d}/offset", json.dumps(end).encode())
    logs = [ledger.partition_log(1, k) for k in range(2)]
    for log, numbers in zip(logs, [(1, 2), (3, 4)], strict=True):
        entries = log.put_last(EntryKind.CLAIM, "a" * 32)
        entry = log.put(entries, EntryKind.SEGMENT, "a" * 32, old_segment(*numbers), len(numbers))
        assert entry
        entries.append(entry)
    entry = entries[-1]
    fields = {"number": 1, "kind": "segment", "attempt": "a" * 32, "rows": 2, "after": "a" * 32}
    sizes = {"sizes": entry.sizes, "checksums": entry.checksums}
    seal = {"segments": [fields | sizes], "settled": False, "again": 0, "notes": []}
    part = pa.py_buffer(json.dumps(seal).encode())
    assert logs[1].put(entries, EntryKind.SEAL, "a" * 32, [part])

    rows = driven.read(start, end)
    assert bodies_of(rows) == Counter([b"body 1", b"body 2", b"0", b"body 3", b"body 4"])
    assert {(row["topic"], row["nsqd"]) for row in rows} == {(driven.topic, nsqd)}
    driven.publish(1, 4)
    after = driven.plan(end)
    assert bodies_of(driven.read(end, after)) == Counter(numbered(1, 4))
    driven.reader.commit(end)
    kept = [name for name in driven.ledger(end).names() if name.startswith("again-")]
    assert kept == [f"again-{1:010d}-4"]


def test_a_batch_takes_two_requests_a_task_and_twenty_more(
    minio: Minio, bucket: str, many: Many
) -> None:
    """Of the driver, from the commit of the batch before to its own."""
    many.publish()
    driven = many.driven(f"{bucket}/staging", partitions=str(TOPICS))
    driven.reader.prepareForTriggerAvailableNow()
    limit = ReadMaxRows(2 * TOPICS)
    _, end, rows = driven.first(limit)
    before = minio.requests()
    after = driven.plan(end, limit)  # counts, cleans up and plans
    partitions = driven.reader.partitions(end, after)
    asked = minio.requests() - before
    assert len(partitions) == TOPICS
    assert 0 < asked <= 2 * TOPICS + 20
    assert driven.ledger(end).batches(driven.ledger(end).names()) == [2]
    more = driven.read(end, after)
    many.check(rows, more, *driven.drain(after)[1])
