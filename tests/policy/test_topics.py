"""Which topics a pattern stands for, round by round."""

import re

from nsqtools.policy.topics import Change, MatchingTopics

ALL = re.compile("")


def test_topics_appear_once_in_order_and_others_do_not() -> None:
    topics = MatchingTopics(re.compile("a"), 60)
    assert topics.looked(["ba", "b", "aa", "ba"], complete=True, now=0) == Change(["aa", "ba"], [])
    assert topics.looked(["ba", "b", "aa", "ac"], complete=True, now=1) == Change(["ac"], [])


def test_a_topic_is_gone_once_it_was_missing_for_the_grace() -> None:
    topics = MatchingTopics(ALL, 60)
    topics.looked(["a", "b"], complete=True, now=0)
    for now in (60, 120, 179):
        assert topics.looked(["a"], complete=True, now=now) == Change([], [])
    assert topics.looked(["a"], complete=True, now=180) == Change([], ["b"])
    assert topics.looked(["a"], complete=True, now=240) == Change([], [])
    assert topics.looked(["b"], complete=False, now=300) == Change(["b"], [])


def test_nothing_is_missing_in_a_round_that_somebody_did_not_answer() -> None:
    topics = MatchingTopics(ALL, 60)
    topics.looked(["a"], complete=True, now=0)
    for now in range(60, 6000, 60):
        assert topics.looked(["b"], complete=False, now=now).disappeared == []
    # Nor is the time counted that passed meanwhile.
    assert topics.looked(["b"], complete=True, now=6000).disappeared == []
    assert topics.looked(["b"], complete=True, now=6119).disappeared == []
    assert topics.looked(["b"], complete=True, now=6120).disappeared == ["a"]
