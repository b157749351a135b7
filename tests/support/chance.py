"""Moments and shares for tests that kill: drawn from a seed that a failing test shows."""

from __future__ import annotations

import random
from itertools import pairwise


def seeded() -> random.Random:
    """A generator whose seed a failing test shows; put the seed here to have it again."""
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return random.Random(seed)


def shares(count: int, rounds: int) -> list[range]:
    """The numbers below ``count`` in so many parts."""
    edges = [count * edge // rounds for edge in range(rounds + 1)]
    return [range(begin, end) for begin, end in pairwise(edges)]
