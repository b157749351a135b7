"""Plans of micro-batches, and their offsets in Spark's log.

Pure: no pyspark, no pyarrow, no clock.
"""

from __future__ import annotations

import heapq
import json
import re
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

from nsqtools.errors import ConfigError
from nsqtools.names import Address, check_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

TopicOnNsqd: TypeAlias = tuple[str, str]
"""A topic and an nsqd (``host:tcp_port``) that has messages of it: a ``queue``."""

_STREAM = re.compile(r"[a-z0-9-]{1,64}")
LINE = 512
"""The size of the first line of a plan's file: the offset can be read without the rest."""
_PLAN = re.compile(r"[0-9a-f]{0,64}")
_CONNECTION = 100
"""Messages that take about as long as to open and close a connection."""


@dataclass(frozen=True, slots=True)
class Quota:
    """At most ``count`` messages of a topic from an nsqd (``host:tcp_port``)."""

    topic: str
    nsqd: str
    count: int

    @property
    def queue(self) -> TopicOnNsqd:
        """Where they wait."""
        return self.topic, self.nsqd


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a stream: the batches whose messages it has taken.

    ``stream`` is a uuid4 that is made with a checkpoint. It separates streams that share a staging
    directory, where it is a directory name. Batch 0 is the state before the first batch. ``plan``
    is the digest of the batch's plan, which is in the staging; empty for a batch without messages.
    So an offset, which Spark also shows in each progress, stays small.
    """

    stream: str
    batch: int
    plan: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the value for Spark's log."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """Return the offset for a result of ``to_json``; raises ConfigError for anything else.

        Earlier versions wrote the whole plan, as ``quotas``.
        """
        with _refusing_foreign():
            if "quotas" in value:
                return BatchPlan.of_quotas(value).offset
            plan = value["plan"]
            if not (isinstance(plan, str) and _PLAN.fullmatch(plan)):
                raise _foreign(f"its plan is {plan!r}")
            return cls(*_place(value), plan)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The messages that the tasks of a batch may take; task ``k`` fills partition ``k``.

    Because the plan is stored before the batch begins, a restart finds the rows again even if the
    nsqds have changed. A task has at most one quota of a topic on an nsqd.
    """

    stream: str
    batch: int
    tasks: tuple[tuple[Quota, ...], ...]

    @property
    def messages(self) -> int:
        """The maximum number of messages."""
        return sum(quota.count for task in self.tasks for quota in task)

    @property
    def offset(self) -> Offset:
        """The offset of the stream after the batch."""
        digest = sha256(self._text().encode()).hexdigest()[:32] if self.tasks else ""
        return Offset(self.stream, self.batch, digest)

    def sharing(self, queues: Collection[TopicOnNsqd]) -> list[int]:
        """Return the tasks with quotas of these queues."""
        return [
            k for k, task in enumerate(self.tasks) if any(quota.queue in queues for quota in task)
        ]

    def to_bytes(self) -> bytes:
        """Return the content of its file: the offset in a line of LINE bytes, then the tasks."""
        return f"{json.dumps(self.offset.to_json()).ljust(LINE - 1)}\n{self._text()}".encode()

    def _text(self) -> str:
        tasks = [[(each.topic, each.nsqd, each.count) for each in task] for task in self.tasks]
        return json.dumps(tasks, separators=(",", ":"))

    @classmethod
    def from_bytes(cls, data: bytes) -> BatchPlan:
        """Return the plan for a result of ``to_bytes``.

        Raises ConfigError or ValueError for anything else.
        """
        line, newline, rest = data.partition(b"\n")
        if not newline:
            return cls.of_quotas(json.loads(line))
        offset, tasks = Offset.from_json(json.loads(line)), json.loads(rest)
        with _refusing_foreign():
            quotas = tuple(tuple(_quota(*each) for each in task) for task in tasks)
        found = cls(offset.stream, offset.batch, quotas)
        if found.offset != offset:
            raise _foreign("its plan is another one")
        return found

    @classmethod
    def of_quotas(cls, value: Mapping[str, Any]) -> BatchPlan:
        """Return the plan for an offset of an earlier version, where each quota was a task.

        Raises ConfigError for anything else.
        """
        with _refusing_foreign():
            given = [(each["topic"], each["nsqd"], each["count"]) for each in value["quotas"]]
            return cls(*_place(value), tuple((_quota(*each),) for each in given))


@contextmanager
def _refusing_foreign() -> Iterator[None]:
    """Raise ConfigError for JSON of another shape."""
    try:
        yield
    except KeyError as error:
        raise _foreign(f"it has no {error}") from error
    except (TypeError, AttributeError) as error:
        raise _foreign(f"{error}") from error


def _place(value: Mapping[str, Any]) -> tuple[str, int]:
    """Return stream and batch."""
    stream = value["stream"]
    if not (isinstance(stream, str) and _STREAM.fullmatch(stream)):
        raise _foreign(f"its stream is {stream!r}")
    return stream, _count("batch", value["batch"], 0)


def _quota(topic: Any, nsqd: Any, count: Any) -> Quota:
    try:
        check_name("topic", topic)
        Address.parse(nsqd)
    except ConfigError as error:
        raise _foreign(str(error)) from error
    return Quota(topic, nsqd, _count("count", count, 1))


def _count(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise _foreign(f"its {name} is {value!r}")
    return value


def _foreign(reason: str) -> ConfigError:
    return ConfigError(
        f"checkpoint: an offset was not written by the nsq source ({reason}): use a new "
        "checkpoint directory"
    )


def plan(
    depths: Mapping[TopicOnNsqd, int], *, limit: int | None, connections: int, tasks: int
) -> tuple[tuple[Quota, ...], ...]:
    """Return the quotas of each task for depths by (topic, nsqd); their sum is at most ``limit``.

    The sum is the limit, or the total depth if that is less. Quotas are in proportion to depths.
    Each queue with messages gets at least one; if the limit is too small for that, the deepest
    do. A queue larger than half of a task's share is divided among up to ``connections`` tasks.

    There are about ``tasks`` tasks of nearly the same size, or ``connections`` if that is more, and
    none without messages. The largest tasks and quotas come first, because Spark starts tasks in
    this order, and a large one that starts last would delay the batch.
    """
    # The deepest first: who is first has the better claim wherever a count does not divide.
    ranked = sorted(((depth, queue) for queue, depth in depths.items() if depth > 0), key=_rank)
    shares = _shares([depth for depth, _ in ranked], limit)
    tasks = max(tasks, connections, 1)
    half = max(1, sum(shares) // (2 * tasks))
    quotas = (
        Quota(*queue, count)
        for (_, queue), share in zip(ranked, shares, strict=True)
        if share
        for count in _split(share, min(-(-share // half), connections))
    )
    packed = _packed(sorted(quotas, key=_size), tasks)
    return tuple(sorted(packed, key=lambda task: (-_work(task), task[0].topic, task[0].nsqd)))


def _size(quota: Quota) -> tuple[int, str, str]:
    return -quota.count, quota.topic, quota.nsqd


def _work(task: Iterable[Quota]) -> int:
    return sum(quota.count + _CONNECTION for quota in task)


def _packed(quotas: Iterable[Quota], tasks: int) -> list[tuple[Quota, ...]]:
    """Give each quota, the largest first, to the task with the least work.

    Tasks that already have a quota of the same topic on the same nsqd are passed over.
    """
    heap = [(0, k) for k in range(tasks)]
    found: list[list[Quota]] = [[] for _ in range(tasks)]
    has: set[tuple[TopicOnNsqd, int]] = set()
    for quota in quotas:
        passed = []
        while (quota.queue, heap[0][1]) in has:
            passed.append(heapq.heappop(heap))
        work, k = heap[0]
        heapq.heapreplace(heap, (work + quota.count + _CONNECTION, k))
        for each in passed:
            heapq.heappush(heap, each)
        found[k].append(quota)
        has.add((quota.queue, k))
    return [tuple(each) for each in found if each]


def _rank(item: tuple[int, TopicOnNsqd]) -> tuple[int, TopicOnNsqd]:
    depth, queue = item
    return -depth, queue


def _shares(depths: list[int], limit: int | None) -> list[int]:
    """One for each, the rest by largest remainders; ``depths`` are in falling order."""
    total, number = sum(depths), len(depths)
    if limit is None or limit >= total:
        return depths
    if limit <= number:
        return [1] * max(limit, 0) + [0] * (number - max(limit, 0))
    rest, weight = limit - number, total - number
    parts = [divmod(rest * (depth - 1), weight) for depth in depths]
    left = rest - sum(whole for whole, _ in parts)
    # Fewer are left than have a remainder, so nobody is given more than there is.
    rounded_up = set(sorted(range(number), key=lambda index: -parts[index][1])[:left])
    return [1 + whole + (index in rounded_up) for index, (whole, _) in enumerate(parts)]


def _split(count: int, parts: int) -> Iterable[int]:
    parts = min(count, max(parts, 1))
    each, more = divmod(count, parts)
    return [each + (index < more) for index in range(parts)]
