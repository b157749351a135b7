"""How many files a run may have open, and what is advised where those are too few."""

from __future__ import annotations

import re

import pytest

from nsqtools.engine.descriptors import Descriptors
from nsqtools.errors import ConfigError


@pytest.mark.parametrize(("topics", "nsqds"), [(1, 1), (10, 0), (40, 1), (500, 3)])
def test_the_limit_that_is_advised_is_enough_and_not_much_too_high(topics: int, nsqds: int) -> None:
    def needed(limit: int) -> int:
        try:
            Descriptors(limit, files=3, servers=1).check([nsqds] * topics)
        except ConfigError as error:
            return int(re.findall(r"ulimit -n (\d+)", str(error))[0])
        return 0

    advised = needed(16)
    assert advised > topics * (3 + max(1, nsqds))
    assert needed(advised) == 0
    assert needed(advised - advised // 8) == advised


def test_what_is_released_others_may_have() -> None:
    descriptors = Descriptors(32, files=3, servers=1)  # 30 less 24 is one topic
    descriptors.reserve("t", 1, topics=1)
    descriptors.reserve("t", 1, topics=1)
    with pytest.raises(ConfigError, match="2 topics"):
        descriptors.reserve("more", 1, topics=2)
    descriptors.release("t")
    descriptors.reserve("more", 1, topics=2)
