"""Finds out why a consumer receives nothing: it gathers facts, and pure functions judge them."""

# size: the list of judges

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqtools.engine.doctor.backlog import judge_channel, judge_consumers, judge_topic
from nsqtools.engine.doctor.servers import (
    judge_capacity,
    judge_clocks,
    judge_listing,
    judge_lookupds,
    judge_nsqds,
)

if TYPE_CHECKING:
    from nsqtools.engine.doctor.facts import Facts, Finding

_JUDGES = (
    judge_lookupds,
    judge_listing,
    judge_nsqds,
    judge_clocks,
    judge_capacity,
    judge_topic,
    judge_channel,
    judge_consumers,
)


def diagnose(facts: Facts) -> list[Finding]:
    """Return all findings: on servers first, then on messages."""
    return [finding for judge in _JUDGES for finding in judge(facts)]
