"""What has changed between two looks at a cluster."""

from dataclasses import replace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from nsqtools.engine.doctor.comparison import compare
from nsqtools.engine.doctor.findings import fault
from nsqtools.engine.doctor.snapshot import SavedSnapshot
from nsqtools.net.http.replies import NsqdStats
from tests.support.staging import channel, events

SEEN = st.one_of(
    st.none(),
    st.builds(
        lambda start, names, count: NsqdStats(
            "", "", start, (events(*map(channel, sorted(names)), published=count),)
        ),
        st.integers(1, 2),
        st.sets(st.sampled_from("cd")),
        st.integers(0, 2),
    ),
    st.just(NsqdStats()),
)
"""An nsqd: silent, with a topic, or without."""


def snapshot(seen: dict[str, NsqdStats | None], hidden: bool = False) -> SavedSnapshot:
    stats = {name: each for name, each in seen.items() if each}
    silent = dict.fromkeys(seen.keys() - stats.keys(), "silent")
    lookupds = {"l:4161": "silent"} if hidden else {}
    return SavedSnapshot(1.0, stats, silent, silent_lookupds=lookupds)


SNAPSHOTS = st.builds(snapshot, st.dictionaries(st.sampled_from("ab"), SEEN), st.booleans())


@given(SNAPSHOTS, SNAPSHOTS)
def test_nothing_comes_or_goes_that_may_have_been_there(
    before: SavedSnapshot, now: SavedSnapshot
) -> None:
    changes, reverse = compare(before, now), compare(now, before)
    had = {key for each in before.samples().values() if each for key in each.counters}
    has = {key for each in now.samples().values() if each for key in each.counters}
    assert (changes.came, changes.went) == (reverse.went, reverse.came)
    assert set(changes.came) <= has - had
    if before.is_complete:
        assert set(changes.came) == has - had
    if before.silent_lookupds:
        unseen = [now.samples()[name] for name in now.stats.keys() - before.stats.keys()]
        assert all(each.counters.keys().isdisjoint(changes.came) for each in unseen if each)
    assert set(changes.still) <= has & had
    for name in before.silent.keys() | now.silent.keys():
        for one in (before, now):
            sample = one.samples().get(name)
            told = {*changes.came, *changes.went, *changes.still}
            assert not sample or sample.counters.keys().isdisjoint(told)
    same = compare(now, now)
    assert (same.came, same.went) == ((), ())
    assert set(same.still) == has


def test_an_nsqd_comes_or_goes_unless_it_may_only_be_silent() -> None:
    both, one = snapshot({"a": NsqdStats(), "b": NsqdStats()}), snapshot({"a": NsqdStats()})
    changes, reverse = compare(both, one), compare(one, both)
    assert (changes.nsqds_came, changes.nsqds_went) == ((), ("b",))
    assert (reverse.nsqds_came, reverse.nsqds_went) == (("b",), ())
    unlisted = replace(one, silent_lookupds={"l": "silent"})
    silent = snapshot({"a": NsqdStats(), "b": None})
    by_other_address = snapshot({"a": NsqdStats(), "b by HTTP": None})
    for doubtful in (unlisted, silent, by_other_address):
        assert compare(both, doubtful).nsqds_went == ()
        assert compare(doubtful, both).nsqds_came == ()


def test_what_is_published_to_or_restarted_does_not_stand_still() -> None:
    def look(published: int, depth: int, start: int = 1) -> SavedSnapshot:
        parts = channel("c", depth=depth, message_count=published), channel("d")
        return snapshot({"a": NsqdStats("", "", start, (events(*parts, published=published),))})

    before = look(5, 3)
    assert compare(before, look(5, 3)).still == (("events", ""), ("events", "c"), ("events", "d"))
    assert compare(before, look(6, 4)).still == (("events", "d"),)
    assert compare(before, look(5, 2)).still == (("events", "d"),)
    assert compare(before, look(5, 3, start=2)).still == ()


def test_a_finding_with_other_numbers_is_the_same() -> None:
    def having(*texts: str) -> SavedSnapshot:
        found = (fault("NSQ036", text, "", topic="events", channel="c") for text in texts)
        return SavedSnapshot(1.0, {}, findings=tuple(found))

    changes = compare(having("depth 3"), having("depth 4"))
    assert (changes.new_findings, changes.gone_findings) == ((), ())
    assert [each.text for each in compare(having(), having("depth 4")).new_findings] == ["depth 4"]
    assert [each.text for each in compare(having("depth 3"), having()).gone_findings] == ["depth 3"]


def test_a_finding_is_gone_only_if_its_server_answers() -> None:
    found = fault("NSQ004", "full", "", server="a:4150"), fault("NSQ032", "idle", "", topic="t")
    before = SavedSnapshot(1.0, {"a:4150": NsqdStats()}, findings=found)
    for change, gone in (
        ({}, found),
        ({"silent": {"b:4150": "silent"}}, found[:1]),
        ({"silent_lookupds": {"l:4161": "silent"}}, found[:1]),
        ({"stats": {}, "silent": {"a:4150": "silent"}}, ()),
    ):
        now = replace(before, findings=(), **cast("Any", change))
        assert compare(before, now).gone_findings == gone
