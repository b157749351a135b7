"""Plans of micro-batches by nsqd, and their form in Spark's offset log.

Pure: no pyspark, no pyarrow, no clock.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nsqtools.errors import ConfigError
from nsqtools.names import Address, check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TopicOnNsqd: TypeAlias = tuple[str, str]
"""A topic and an nsqd (``host:tcp_port``) that has messages of it."""

_STREAM = re.compile(r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Quota:
    """One partition: at most ``count`` messages of a topic from an nsqd (``host:tcp_port``)."""

    topic: str
    nsqd: str
    count: int

    @property
    def queue(self) -> TopicOnNsqd:
        """Where they wait."""
        return self.topic, self.nsqd


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a stream: the messages that each of its batches may take.

    ``stream`` is a uuid4 that is made with a checkpoint. It separates streams that share a staging
    directory, where it is a directory name. Batch 0 is the state before the first batch and has no
    quotas. Partition ``k`` of the batch is ``quotas[k]``, so that a restart finds the rows again
    even if the nsqds have changed.
    """

    stream: str
    batch: int
    quotas: tuple[Quota, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the value for Spark's log."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """Return the offset for a result of ``to_json``; raises ConfigError for anything else."""
        try:
            stream, batch, quotas = value["stream"], value["batch"], value["quotas"]
            if not (isinstance(stream, str) and _STREAM.fullmatch(stream)):
                raise _foreign(f"its stream is {stream!r}")
            return cls(stream, _count("batch", batch, 0), tuple(map(_quota, quotas)))
        except KeyError as error:
            raise _foreign(f"it has no {error}") from error
        except (TypeError, AttributeError) as error:
            raise _foreign(f"{error}") from error


def _quota(value: Mapping[str, Any]) -> Quota:
    topic, nsqd = value["topic"], value["nsqd"]
    try:
        check_name("topic", topic)
        Address.parse(nsqd)
    except ConfigError as error:
        raise _foreign(str(error)) from error
    return Quota(topic, nsqd, _count("count", value["count"], 1))


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
    depths: Mapping[TopicOnNsqd, int], *, limit: int | None, connections: int
) -> tuple[Quota, ...]:
    """Return quotas for depths by (topic, nsqd), in proportion; their sum is at most ``limit``.

    The sum is the limit, or the total depth if that is less. Each pair with messages gets at least
    one; if the limit is too small for that, the deepest pairs do. Each pair gets at most
    ``connections`` quotas of nearly the same count. The largest come first, because Spark starts
    tasks in this order, and a large task that starts last would delay the batch.
    """
    # The deepest first: who is first has the better claim wherever a count does not divide.
    ranked = sorted(((depth, pair) for pair, depth in depths.items() if depth > 0), key=_rank)
    shares = _shares([depth for depth, _ in ranked], limit)
    quotas = (
        Quota(*pair, count)
        for (_, pair), share in zip(ranked, shares, strict=True)
        for count in _split(share, connections)
    )
    return tuple(sorted(quotas, key=lambda quota: (-quota.count, quota.topic, quota.nsqd)))


def _rank(item: tuple[int, TopicOnNsqd]) -> tuple[int, TopicOnNsqd]:
    depth, pair = item
    return -depth, pair


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


def _split(count: int, connections: int) -> Iterable[int]:
    parts = min(count, max(connections, 1))
    if not parts:
        return ()
    each, more = divmod(count, parts)
    return [each + (index < more) for index in range(parts)]
