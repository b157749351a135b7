"""Who has a topic is asked once, and what is done to it goes to who is named in the plan."""

from nsqtools.engine.administration import Servers, all_topics, survey
from tests.support.staging import Fake, Stage

LIMITS = {"connect_timeout": 60.0, "request_timeout": 60.0, "tls": None}


def servers(*lookupds: Fake, nsqds: tuple[Fake, ...] = ()) -> Servers:
    return Servers(
        tuple(each.name for each in lookupds), tuple(each.name for each in nsqds), LIMITS
    )


async def registry(stage: Stage, *nsqds: Fake, topics: tuple[str, ...] = ()) -> Fake:
    lookupd = await stage.lookupd(*nsqds)
    lookupd.answers |= {"/topics": {"topics": topics}, "/channels": {"channels": ["c"]}}
    return lookupd


async def test_everybody_is_asked_once(stage: Stage) -> None:
    given, listed = await stage.nsqd("t"), await stage.nsqd("t", "u")
    lookupd = await registry(stage, listed, topics=("t", "v"))
    all_servers = servers(lookupd, nsqds=(given,))
    found = await survey(all_servers, "t")
    assert sorted(lookupd.asked) == ["/channels?topic=t", "/nodes", "/topics"]
    assert [each.partition("?")[0] for each in given.asked] == ["/info", "/stats"]
    assert [each.partition("?")[0] for each in listed.asked] == ["/stats"]
    assert [(each.node.name, each.given) for each in found.holdings] == [
        (given.name, True),
        (listed.name, False),
    ]
    assert all(each.topic and each.topic.name == "t" for each in found.holdings)
    (known,) = found.registries
    assert (known.topics, known.channels) == (("t", "v"), ("c",))
    assert [str(each.http) for each in known.producers] == [listed.name]
    assert not found.blind
    assert await all_topics(all_servers, found) == {"t", "u", "v"}


async def test_an_nsqd_is_asked_though_nsqlookupd_does_not_list_it_with_the_topic(
    stage: Stage,
) -> None:
    """As after a topic was deleted from nsqlookupd, and an nsqd did not answer."""
    nsqd = await stage.nsqd("t")
    lookupd = await registry(stage, nsqd)
    lookupd.answers["/nodes"]["producers"][0] |= {"topics": [], "tombstones": []}
    (holding,) = (await survey(servers(lookupd), "t")).holdings
    assert holding.topic


async def test_the_error_of_an_nsqlookupd_is_that_of_any_of_its_answers(stage: Stage) -> None:
    nsqd = await stage.nsqd("t")
    mute, deaf = await registry(stage, nsqd), await registry(stage, nsqd)
    del mute.answers["/nodes"], deaf.answers["/topics"]
    found = await survey(servers(mute, deaf), "t")
    assert all(each.error and not each.producers for each in found.registries)
    assert found.blind
    assert [each.node.name for each in found.holdings] == [nsqd.name]
