"""Every order of events in a small world, instead of a sample of them."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


def reachable(start: Iterable[S], events: Callable[[S], Iterable[S]], depth: int) -> Iterator[S]:
    """Yield each state that so many events can lead to, once, the nearest first.

    ``events`` returns the states after each event that is possible in a state; it asserts what
    must hold. Equal states have an equal future, so that all orders of events are covered.
    """
    known: set[S] = set()
    layer = dict.fromkeys(start)
    for left in range(depth, -1, -1):
        fresh = [state for state in layer if state not in known]
        known.update(fresh)
        yield from fresh
        if left:
            layer = {after: None for state in fresh for after in events(state)}
