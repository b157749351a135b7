"""Judges topics, their channels and consumers: where messages wait, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsqtools.config.units import counted, enumerated, nearest
from nsqtools.engine.doctor.findings import fault, passed
from nsqtools.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsqtools.engine.doctor.facts import Facts, NsqdFacts
    from nsqtools.engine.doctor.findings import Finding
    from nsqtools.net.http.replies import ChannelStats, ClientStats

    Found = list[tuple[NsqdFacts, ChannelStats]]

_HELD = ("depth", "in_flight", "deferred")
_MOST = 5
"""The maximum number of stuck consumers, each with a finding."""

_PACE = 3.0
"""Messages per second that a consumer settles, so that none in a second is a surprise."""

_MANY, _MAX_TIMEOUTS, _MAX_REQUEUES = 10, 0.05, 0.2  # a number, and parts of all messages


def judge_topic(facts: Facts) -> Iterator[Finding]:
    """Judge whether the topic exists, has messages, and passes them to its channels."""
    having = list(facts.having())
    topic = facts.topic
    if not having:
        if not facts.lookupds and any(not each.http_error for each in facts.nsqds):
            near = nearest(topic, sorted(facts.known_topics))
            fix = f"check the name, or publish to it, which creates it: {facts.publish()}"
            yield fault("NSQ030", f"no nsqd has topic {topic}{near}", fix, topic=topic)
        return
    paused = [nsqd for nsqd, found in having if found.paused]
    if paused:
        text = f"topic {topic} is paused on {_names(paused)}: its channels get no messages"
        fix = facts.command("topic", "unpause", topic, nsqds=tuple(paused))
        yield fault("NSQ034", text, fix, error=not facts.whole, topic=topic)
    published = sum(found.message_count for _, found in having)
    if not published:
        text = f"nothing has been published to topic {topic} since its nsqds started"
        fix = f"publish a message and run doctor again: {facts.publish()}"
        yield fault("NSQ031", text, fix, topic=topic)
    elif not paused:
        yield passed("topic", f"topic {topic}: {_messages(published)} published so far")
    if waiting := _depth_without_channel(facts):
        yield _about_waiting(facts, waiting)


def _about_waiting(facts: Facts, waiting: int) -> Finding:
    """Return the finding on messages without a channel; it covers a missing named channel, too."""
    topic, name, channels = facts.topic, facts.channel, _channels(facts)
    verb = "waits" if waiting == 1 else "wait"
    text = f"{_messages(waiting)} {verb} in topic {topic} on nsqds where it has no channel"
    if name and name not in channels:
        text += f", and no nsqd has channel {name}{nearest(name, sorted(channels))}"
    stays = bool(name) and not is_ephemeral(name)  # nsqd drops an ephemeral one with its messages
    make = facts.command("channel", "create", topic, name if stays else "NAME")
    do = f"create {name}" if stays else "create a channel that stays"
    fix = f"{do}: the first channel on an nsqd gets the messages that wait there: {make}"
    return fault("NSQ033", text, fix, topic=topic)


def judge_channel(facts: Facts) -> Iterator[Finding]:
    """Judge whether the channel exists, has messages, and delivers them."""
    name, channels = facts.channel, _channels(facts)
    if not name:
        for each, found in sorted(channels.items()):
            yield _about(facts, each, found)
        return
    if name not in channels:
        if any(True for _ in facts.having()) and not _depth_without_channel(facts):
            yield _absent(facts, sorted(channels))
        return
    yield _about(facts, name, channels[name])
    here = _sum(channels[name], *_HELD)
    depths = {each: _sum(channels[each], "depth") for each in channels if each != name}
    others = {each: depth for each, depth in depths.items() if depth}
    if not here and others:
        waiting = ", ".join(f"{depth} in channel {each}" for each, depth in sorted(others.items()))
        text = f"channel {name} is empty, but other channels of the topic are not: {waiting}"
        deepest = max(others, key=lambda each: others[each])
        fix = f"they are for the consumers of that channel{_look(facts, deepest)}"
        yield fault("NSQ038", text, fix, topic=facts.topic, channel=name)


def _about(facts: Facts, name: str, found: Found) -> Finding:
    """Return the finding on one channel."""
    about: dict[str, Any] = {"topic": facts.topic, "channel": name}
    paused = [nsqd for nsqd, channel in found if channel.paused]
    if paused:
        fix = facts.command("channel", "unpause", facts.topic, name, nsqds=tuple(paused))
        text = f"{_place(facts, name)} is paused on {_names(paused)}: it delivers no messages"
        return fault("NSQ035", text, fix, error=name == facts.channel, **about)
    depth, in_flight, deferred = (_sum(found, field) for field in _HELD)
    clients = _sum(found, "client_count")
    held = f"depth {depth}, in flight {in_flight}, deferred {deferred}"
    text = f"{_place(facts, name)}: {held}, {counted(clients, 'consumer')}"
    if left := [(nsqd, channel) for nsqd, channel in found if _is_left(channel)]:
        if clients:
            names = _names([nsqd for nsqd, _ in left])
            text += f", but none on {names} with {_messages(_sum(left, *_HELD))}"
        fix = (
            "start its consumer, unless it runs from time to time, as from cron"
            f"{_look(facts, name)}; a channel that nobody needs can be deleted"
        )
        return fault("NSQ036", text, fix, **about)
    if name == facts.channel and deferred and not depth and not in_flight:
        text += ": deferred messages are delivered when their delay is over"
        fix = f"wait, or see which consumer requeues messages: {facts.watch_consumers()}"
        return fault("NSQ039", text, fix, **about)
    return passed("channel", text)


def _look(facts: Facts, channel: str) -> str:
    """Return the advice to look at messages; after a look, nsqd deletes an ephemeral channel."""
    return "" if is_ephemeral(channel) else f"; to look at the messages: {facts.look(channel)}"


def _is_left(channel: ChannelStats) -> bool:
    """Whether the channel has messages but no consumer on this nsqd."""
    return not channel.client_count and any(getattr(channel, field) for field in _HELD)


def _absent(facts: Facts, channels: Sequence[str]) -> Finding:
    name = facts.channel
    near = nearest(name, channels)
    text = f"topic {facts.topic} has no channel {name}{near}"
    if is_ephemeral(name):
        fix = "an ephemeral channel exists only while it is consumed: start its consumer"
    else:
        make = facts.command("channel", "create", facts.topic, name)
        fix = f"a channel gets messages from its first consumer on; to create it now: {make}"
    return fault("NSQ037", text, fix, topic=facts.topic, channel=name)


def judge_consumers(facts: Facts) -> Iterator[Finding]:
    """Judge whether other consumers take the channel's messages."""
    found = _channels(facts).get(facts.channel, []) if facts.channel else []
    clients = [(nsqd, client) for nsqd, channel in found for client in channel.clients]
    if not clients:
        return
    about: dict[str, Any] = {"topic": facts.topic, "channel": facts.channel}
    depth, in_flight = _sum(found, "depth"), _sum(found, "in_flight")
    stuck = [(nsqd, client) for nsqd, client in clients if _is_stuck(facts, nsqd, client)]
    all_blocked = bool(depth) and not any(client.ready_count for _, client in clients)
    for nsqd, client in stuck[:_MOST]:
        yield _about_stuck(
            facts, nsqd, client, all_blocked=all_blocked, alone=len(stuck) == len(clients)
        )
    working = [client for each in clients if each not in stuck for client in each[1:]]
    if not working:
        return
    fix = f"to see what each finishes: {facts.watch_consumers()}"
    if not _depth_without_channel(facts):  # the first channel on an nsqd would take those messages
        fix += f"; to get a copy of all messages, use a channel of your own: {facts.look('')}"
    top = max(working, key=lambda client: (client.in_flight, client.ready_count))
    if in_flight and not depth and top.in_flight == in_flight:
        text = (
            f"{_who(top)} holds all {_messages(in_flight)} of channel {facts.channel} in flight, "
            f"with RDY {top.ready_count}: other consumers get none"
        )
        yield fault("NSQ042", text, fix, **about)
        return
    taking = [f"{_who(it)} with RDY {it.ready_count}" for it in working if it.ready_count]
    if taking:
        text = (
            f"channel {facts.channel} is shared by {enumerated(taking)}: each message goes to one "
            "of them"
        )
        yield fault("NSQ042", text, fix, **about)


def _is_stuck(facts: Facts, nsqd: NsqdFacts, client: ClientStats) -> bool:
    """Whether the consumer is at its RDY, and settled nothing between the two looks."""
    if client.in_flight < client.ready_count:
        return False
    channel = nsqd.channel(facts.channel, later=True)
    later = channel.clients if channel else ()
    now = next((each for each in later if each.remote_address == client.remote_address), client)
    return now.finish_count + now.requeue_count == client.finish_count + client.requeue_count and (
        now.in_flight >= now.ready_count
    )


def _about_stuck(
    facts: Facts, nsqd: NsqdFacts, client: ClientStats, *, all_blocked: bool, alone: bool
) -> Finding:
    """Return the finding on a stuck consumer.

    ``all_blocked`` is true if messages wait and every consumer has RDY 0; ``alone`` is true if all
    consumers are stuck. A consumer at its RDY may only be slow: the finding is a failure only if
    ``alone`` and messages time out.
    """
    look = facts.watch_consumers()
    about: dict[str, Any] = {"topic": facts.topic, "channel": facts.channel, "server": nsqd.name}
    if not client.ready_count:
        text = f"{_who(client)} has RDY 0 on nsqd {nsqd.name}: it takes no messages"
        fix = (
            "it is in backoff, is stopping, or its --max-in-flight is below the number of "
            f"nsqds: {look}"
        )
        return fault("NSQ040", text, fix, error=all_blocked, **about)
    text = (
        f"{_who(client)} has {_messages(client.in_flight)} in flight, with RDY "
        f"{client.ready_count} on nsqd {nsqd.name}, and settled no message in 1 s"
    )
    before, later = (nsqd.channel(facts.channel, later=late) for late in (False, True))
    if before and later and (late := later.timeout_count - before.timeout_count) > 0:
        text += f", while {_messages(late)} of the channel timed out: it gets no more messages"
        fix = f"it hangs, or takes longer than its --msg-timeout: {look}"
        return fault("NSQ041", text, fix, error=alone, **about)
    fix = f"it is slow, or hangs: see whether it finishes messages: {look}"
    return fault("NSQ041", text, fix, **about)


def judge_topics(facts: Facts) -> Iterator[Finding]:
    """Judge all topics of a whole cluster, with their channels and consumers."""
    maybe = facts.maybe
    for each in facts.by_topic():
        found = (*judge_topic(each), *judge_channel(each))
        yield from (one for one in found if one.severity != "ok" and one.code != "NSQ031")
        if maybe is not None and each.topic not in maybe:
            yield from _judge_idle(each)
        for name, parts in sorted(_channels(each).items()):
            view = replace(each, channel=name)
            yield from _judge_counts(view, parts)
            yield from _judge_all_consumers(view, parts)


def _judge_idle(facts: Facts) -> Iterator[Finding]:
    """Judge whether a topic has no consumer, no message, and none was published between looks."""
    channels = _channels(facts)
    used = any(_sum(found, "client_count", "paused", *_HELD) for found in channels.values())
    looks = [(topic, nsqd.later or topic) for nsqd, topic in facts.having()]
    moved = any(before.message_count != later.message_count for before, later in looks)
    if used or moved or any(topic.depth or topic.paused for topic, _ in looks):
        return
    published = sum(topic.message_count for topic, _ in looks)
    where = "it has no channel"
    if channels:
        where = f"no consumer of {'channels' if len(channels) > 1 else 'channel'} "
        where += enumerated(sorted(channels))
    text = (
        f"nobody consumes topic {facts.topic}, and nothing was published to it in 1 s: {where}, no "
        f"message waits, and {_messages(published)} {'was' if published == 1 else 'were'} "
        "published since its nsqds started"
    )
    words = ("topic", "prune", "--topic", facts.topic, "--watch-for", "10m", "--dry-run")
    fix = (
        "nothing is wrong if it is used from time to time, as from cron; to watch it for ten "
        f"minutes: {facts.command(*words)}; a topic that nobody needs can be deleted"
    )
    yield fault("NSQ032", text, fix, topic=facts.topic)


def _judge_counts(facts: Facts, found: Found) -> Iterator[Finding]:
    """Judge whether many messages of the channel timed out or were requeued."""
    messages = _sum(found, "message_count")
    about: dict[str, Any] = {"topic": facts.topic, "channel": facts.channel}
    timeouts, requeues = _sum(found, "timeout_count"), _sum(found, "requeue_count")
    if timeouts >= max(_MANY, _MAX_TIMEOUTS * messages):
        text = f"{_place(facts, facts.channel)}: {timeouts} timeouts of {_messages(messages)}"
        fix = (
            "raise the consumers' --msg-timeout, or lower their --max-in-flight: "
            f"{facts.watch_consumers()}"
        )
        yield fault("NSQ043", text, fix, **about)
    if requeues >= max(_MANY, _MAX_REQUEUES * messages):
        text = f"{_place(facts, facts.channel)}: {requeues} requeues of {_messages(messages)}"
        fix = f"handling fails: see the logs of its consumers: {facts.watch_consumers()}"
        yield fault("NSQ044", text, fix, **about)


def _judge_all_consumers(facts: Facts, found: Found) -> Iterator[Finding]:
    """Judge whether messages wait in the channel, and none of its consumers makes progress."""
    clients = [(nsqd, client) for nsqd, channel in found for client in channel.clients]
    depth = _sum(found, "depth")
    if not depth or not clients or any(channel.paused for _, channel in found):
        return
    # Without a second look nobody knows whether the consumer settles messages.
    if not all(nsqd.later and _is_stuck(facts, nsqd, client) for nsqd, client in clients):
        return
    about: dict[str, Any] = {"topic": facts.topic, "channel": facts.channel}
    text = f"{_place(facts, facts.channel)}: depth {depth}, {counted(len(clients), 'consumer')}"
    look = facts.watch_consumers()
    if not any(client.ready_count for _, client in clients):
        fix = f"see whether they are in backoff, or are stopping: {look}"
        yield fault("NSQ040", f"{text}, and RDY 0 of all", fix, error=True, **about)
        return
    timeouts = _sum(found, "timeout_count")
    if not timeouts and all(_is_slow(nsqd, client) for nsqd, client in clients):
        return
    text += ", and none has settled a message in 1 s, with as many in flight as its RDY"
    later = [nsqd.channel(facts.channel, later=True) for nsqd, _ in found]
    late = sum(channel.timeout_count for channel in later if channel) - timeouts
    if late > 0:
        text += f", while {_messages(late)} timed out"
    yield fault("NSQ041", text, f"see whether they hang: {look}", error=late > 0, **about)


def _is_slow(nsqd: NsqdFacts, client: ClientStats) -> bool:
    """Whether the consumer has settled messages, but too few to expect one in a second."""
    settled = client.finish_count + client.requeue_count
    return nsqd.time is not None and 0 < settled < _PACE * (nsqd.time[0] - client.connect_ts)


def _who(client: ClientStats) -> str:
    host = client.hostname or client.client_id
    return f"consumer {client.remote_address} ({host}, {client.user_agent or 'no user agent'})"


def _depth_without_channel(facts: Facts) -> int:
    """Return the number of messages on nsqds where the topic has no channel."""
    return sum(topic.depth for _, topic in facts.having() if not topic.channels)


def _channels(facts: Facts) -> dict[str, Found]:
    """Return the nsqds of each channel, each with the channel's stats there."""
    found: dict[str, Found] = {}
    for nsqd, topic in facts.having():
        for channel in topic.channels:
            found.setdefault(channel.name, []).append((nsqd, channel))
    return found


def _sum(found: Found, *fields: str) -> int:
    return sum(getattr(channel, field) for _, channel in found for field in fields)


def _place(facts: Facts, channel: str) -> str:
    return f"channel {channel} of topic {facts.topic}"


def _names(nsqds: Sequence[NsqdFacts]) -> str:
    return ", ".join(f"nsqd {nsqd.name}" for nsqd in nsqds)


def _messages(number: int) -> str:
    return counted(number, "message")
