"""``python -m tests.simulation.shrink KIND SEED``: the shortest life that still fails.

It leaves out faults, copies, servers and messages, and prints what is left, event by event.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.inhabitants import live
from tests.simulation.plans import KINDS, plan_of
from tests.simulation.world import ViolationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.plans import Plan


def failure(plan: Plan, *, talk: bool = False) -> str:
    """What is violated in a life; empty if nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            live(plan, Path(folder), talk=talk)
        except ViolationError as error:
            return str(error)
    return ""


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with a little less."""
    for fault in plan.faults:
        yield plan.without(fault)
    if plan.copies > 1:
        yield replace(plan, copies=1)
    for servers in range(1, plan.servers):
        yield replace(plan, servers=servers)
    if plan.lookupds:
        yield replace(plan, lookupds=0)
    for messages in (1, 20, 200):
        if messages < plan.messages:
            yield replace(plan, messages=messages)


def shrink(plan: Plan) -> Plan:
    """Leave out what the failure, of whatever kind, does not need."""
    while True:
        for candidate in smaller(plan):
            if failure(candidate):
                plan = candidate
                break
        else:
            return plan


def main() -> None:
    """Shrink the life that is given."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.shrink")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("seed", type=int)
    args = parser.parse_args()
    plan = plan_of(args.seed, args.kind)
    if not failure(plan):
        print(f"{args.kind} {args.seed}: nothing is violated")
        return
    failure(shrink(plan), talk=True)


if __name__ == "__main__":
    main()
