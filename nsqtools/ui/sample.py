"""The pages with messages: of a channel, copies of a topic, dead letters; and publishing again."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import secrets
from hashlib import sha256
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from nsqtools.config.connection import ClientConfig, ConsumerConfig, ProducerConfig
from nsqtools.config.consuming import StopOptions
from nsqtools.engine.connector import Subscription
from nsqtools.engine.producer import Producer
from nsqtools.engine.runner import Runner
from nsqtools.errors import ConfigError, NSQError
from nsqtools.records.bodies.expressions import fulfilling
from nsqtools.records.readable import ReadableBody, readable
from nsqtools.redrive.publishedlines import covers
from nsqtools.redrive.redriver import DEAD
from nsqtools.redrive.republication import (
    ChannelAgain,
    LettersAgain,
    Republication,
    lines_published,
    origin_in_file,
    origin_of,
)
from nsqtools.sinks.deadletters import SUFFIX, dead_letter_files, read_dead_letters
from nsqtools.sinks.peek import Glimpse
from nsqtools.ui.site import WebPage, checked, name_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqtools.names import Address
    from nsqtools.proto.messages import Message
    from nsqtools.sinks.deadletters import DeadLetter
    from nsqtools.ui.site import SentForm, Site

MAX_MESSAGES = 100
_MAX_SHOWN = 64 << 10
_MAX_BYTES = 768 << 10  # of the messages of a page: a form has them in base64 and percent-encoded
_IDLE = 2.0


class ShownMessage(NamedTuple):
    """A message as a page shows it; ``pick`` sends it back in a form.

    ``command`` publishes the message again. ``reason`` is that of a dead letter. ``note`` tells
    whether the body was decoded. A message too large for a form has no ``pick``.
    """

    origin: str
    message: Message | DeadLetter
    readable: ReadableBody
    pick: str
    command: str
    reason: str = ""
    note: str = ""


def shown(
    site: Site,
    topic: str,
    origin: str,
    message: Message | DeadLetter,
    text: bytes | None,
    reason: str = "",
) -> ShownMessage:
    """Return a message with its body, or the decoded ``text`` of it, in a readable form."""
    encoded = base64.b64encode(message.body).decode()
    is_text = readable(message.body, _MAX_SHOWN).kind != "bytes"
    found = readable(message.body if text is None else text, _MAX_SHOWN)
    envelope = {"body": message.body.decode()} if is_text else {"body_b64": encoded}
    command = f"nsqtools pub --topic {quote(topic)} --json {quote(json.dumps(envelope))}"
    note = ""
    if site.decoder:
        note = "did not decode" if text is None else "decoded"
    pick = json.dumps([origin, encoded]) if len(message.body) <= _MAX_BYTES else ""
    return ShownMessage(origin, message, found, pick, command, reason, note)


async def sample_form(site: Site, request: Request, **found: Any) -> WebPage:
    """Offer to look at the messages of a channel, or at copies of a topic's; show those found."""
    topic, channel = name_in(request, "topic"), name_in(request, "channel")
    row = site.watch.picture.rows.get((topic, channel))
    if row is None:
        raise HTTPException(404, "no answering nsqd has it")
    context: dict[str, Any] = {
        "topic": topic,
        "channel": channel,
        "row": row,
        "messages": None,
        "fault": "",
        "count": "10",
        "q": "",
        "jq": "",
        "target": topic.removesuffix(DEAD),
        "source": f"{topic}/{channel}" if channel else "",
        "most": MAX_MESSAGES,
    }
    return WebPage("sample.html", context | found, live=False)


async def sample(site: Site, request: Request, form: SentForm) -> Response:
    """Receive messages, give them back, and show those that the filters let through.

    A channel is only looked at by visitors who may change things: it costs an attempt. A copy of a
    topic comes through an ephemeral channel on nsqds where the topic has a channel that stays: the
    first channel would take the messages waiting in the topic, and nsqd would drop them with it.
    """
    topic, channel = name_in(request, "topic"), name_in(request, "channel")
    count, refusal = int(form.number("count", 10, 1, MAX_MESSAGES)), request.state.visitor.refusal
    if channel and refusal:
        text = f"looking at a channel costs each message an attempt; {refusal}"
        raise HTTPException(403, text)
    async with site.looking():
        snapshot = await site.watch.now(topic)  # the picture may be older than a deletion
        nsqds = snapshot.having(topic, channel, count if channel else None)
        if not nsqds:
            is_known = not channel and snapshot.having(topic, None)
            text = "no channel that stays" if is_known else "no reachable nsqd"
            raise HTTPException(409, f"topic {topic} has {text}: there is nothing to look at")
        names = {"topic": topic, "channel": channel}
        action = "peek_channel" if channel else "copy_topic"
        await site.audit.record(request, action, "begun", **names)
        found = await _receive(site, topic, channel, nsqds, count)
        await site.audit.record(request, action, "done", **names, received=len(found))
        texts, fault = await _texts(site, [message.body for _, message in found])
        candidates = [(*each, text) for each, text in zip(found, texts, strict=True)]
        kept = await _filtered(candidates, form["q"], form["jq"])
    messages: list[ShownMessage] = []
    size = 0
    for nsqd, message, decoded in kept:
        size += len(message.body)
        if size <= _MAX_BYTES or not messages:
            messages.append(shown(site, topic, origin_of(nsqd, message), message, decoded))
    page = await sample_form(
        site, request, messages=messages, received=len(found), left_out=len(kept) - len(messages),
        count=str(count), q=form["q"], jq=form["jq"], fault=fault,
    )  # fmt: skip
    return site.respond(page, request)


async def _receive(
    site: Site, topic: str, channel: str, nsqds: Sequence[Address], count: int
) -> list[tuple[Address, Message]]:
    glimpse = Glimpse(count)
    values = {**vars(site.config), "max_in_flight": count, "max_in_flight_bytes": 8 << 20}
    stop = StopOptions(idle_timeout=_IDLE, max_duration=_IDLE if channel else 5 * _IDLE)
    name = channel or f"ui{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
    await Runner([topic], name, glimpse, ConsumerConfig(**values), nsqds=nsqds, stop=stop).run()
    return glimpse.found


async def _texts(site: Site, bodies: Sequence[bytes]) -> tuple[list[bytes | None], str]:
    """Return the JSON texts of bodies, None for each that does not decode, and the error if none
    can be decoded.
    """
    if not site.decoder:
        return [None] * len(bodies), ""
    try:
        async with site.decoding:
            return await asyncio.to_thread(site.decoder.decode_all, bodies), ""
    except NSQError as error:
        return [None] * len(bodies), str(error)


async def _filtered(
    found: Sequence[tuple[Address, Message, bytes | None]], text: str, program: str
) -> list[tuple[Address, Message, bytes | None]]:
    """Return the messages with a text, and whose JSON fulfils a jq program.

    Both are looked for in the decoded text of a message, if there is one.
    """
    kept = [(each, each[1].body if each[2] is None else each[2]) for each in found]
    kept = [(each, body) for each, body in kept if text.encode().lower() in body.lower()]
    if not program:
        return [each for each, _ in kept]
    texts = [body.decode(errors="replace") for _, body in kept]
    try:
        return [kept[position][0] for position in await fulfilling(program, texts)]
    except ConfigError as error:
        raise HTTPException(400, str(error)) from None


async def dead(site: Site, request: Request) -> WebPage:
    """List the files of the dead-letter directory, or a part of one of them."""
    folder, name = site.options.dead_letter_dir, request.path_params.get("file", "")
    if not folder:
        raise HTTPException(404, "start nsqtools ui with --dead-letter-dir to see dead letters")
    start, q = request.query_params.get("start", "0"), request.query_params.get("q", "")
    try:
        files = await asyncio.to_thread(dead_letter_files, folder)
        if not name:
            return WebPage("dead.html", {"files": sorted(files.items()), "file": ""}, live=False)
        if name not in files or not start.isdecimal() or len(start) > 18:
            raise HTTPException(404, "there is no such file of dead letters")
        path, wanted = os.path.join(folder, name), "" if site.decoder else q
        letters, end = await asyncio.to_thread(
            read_dead_letters, path, int(start), MAX_MESSAGES, _MAX_BYTES, wanted
        )
    except OSError as error:
        raise HTTPException(500, f"{folder}: {error.strerror}") from None
    size = site.config.max_msg_size
    published = await asyncio.to_thread(lines_published, path, size)
    topic = name.removesuffix(SUFFIX)
    usable = [each for each in letters if not each.error]
    texts, fault = await _texts(site, [each.body for each in usable])
    messages = [
        shown(
            site,
            topic,
            origin_in_file(name, each),
            each,
            text,
            f"{each.reason} (published again)" if covers(published, each.offset) else each.reason,
        )
        for each, text in zip(usable, texts, strict=True)
        if q.encode().lower() in (text or each.body).lower() + each.reason.lower().encode()
    ]
    context = {
        "file": name,
        "messages": messages,
        "target": topic,
        "source": name,
        "fault": fault,
        "errors": [(each.offset, each.error) for each in letters if each.error],
        "next": end if end < files[name].st_size and end > int(start) else 0,
        "q": q,
    }
    return WebPage("dead.html", context, live=False)


async def edit(site: Site, request: Request, form: SentForm) -> Response:
    """Show the chosen messages, to be edited before they are published again."""
    picked = []
    for pick, (origin, body) in zip(form.getlist("pick"), _picks(form), strict=True):
        kind, text = readable(body, _MAX_SHOWN)
        is_text = kind != "bytes"
        picked.append((origin, len(body), pick, body.decode() if is_text else text, is_text))
    source = form["source"]
    context = {
        "picked": picked,
        "target": form["target"],
        "nonce": secrets.token_hex(),
        "source": source,
        "is_channel": "/" in source,
        "finishes": source.partition("/")[0].endswith(DEAD),
    }
    return site.respond(WebPage("edit.html", context, live=False), request)


def _picks(form: SentForm) -> list[tuple[str, bytes]]:
    try:
        picks = [json.loads(each) for each in form.getlist("pick")]
        found = [(str(origin), base64.b64decode(body, validate=True)) for origin, body in picks]
    except (ValueError, TypeError):
        raise HTTPException(400, "the chosen messages are not usable") from None
    if not found:
        raise HTTPException(400, "nothing was done: choose messages first")
    return found


async def publish(site: Site, request: Request, form: SentForm) -> Response:
    """Begin to publish messages, and show the log."""
    topic, rate = checked("topic", form["topic"]), form.number("rate", 10, 0.01, 10000)
    messages = [
        (origin, _edited(body, form.getlist(f"text{position}"), position))
        for position, (origin, body) in enumerate(_picks(form))
    ]
    job = await _job(site, form, topic, messages, rate)
    nonce = form["nonce"] or secrets.token_hex()
    log = RedirectResponse(site.url("publications"), 303)
    async with site.publishing:
        if nonce in site.republications.jobs:
            return log  # a double click
        if site.republications.is_full:
            raise HTTPException(429, "nothing was done: wait until another publication has ended")
        sent = [
            {"from": origin[:200], "bytes": len(body), "sha256": sha256(body).hexdigest()}
            for origin, body in messages
        ]
        facts = {"job": nonce, "topic": topic}
        await site.audit.record(
            request, "publish_again", "begun", **facts, rate=rate, messages=sent
        )
        site.republications.begin(nonce, job, _published(site, request, job, facts))
    return log


async def _published(
    site: Site, request: Request, job: Republication, facts: Mapping[str, str]
) -> None:
    """Publish all messages of a job, and tell the audit log at its end."""
    try:
        await job.run()
    finally:
        failures = [{"from": each.origin, "error": each.error} for each in job.log if each.error]
        done = {**facts, "published": job.published, "failed": job.failed, "failures": failures}
        await site.audit.record(request, "publish_again", "done", **done)


async def stop(site: Site, request: Request, form: SentForm) -> Response:
    """Stop a job; what is not published stays where it is."""
    nonce = form["job"]
    if not (job := site.republications.jobs.get(nonce)):
        raise HTTPException(404, "there is no such publication")
    facts = {"job": nonce, "topic": job.topic}
    await site.audit.record(request, "stop_publishing", "begun", **facts)
    job.stop()
    await site.audit.record(request, "stop_publishing", "done", **facts)
    return RedirectResponse(site.url("publications"), 303)


async def _job(
    site: Site, form: SentForm, topic: str, messages: list[tuple[str, bytes]], rate: float
) -> Republication:
    """Return the job for the chosen messages of a file, of a channel to finish, or others.

    Raises HTTPException.
    """
    if not (targets := site.watch.picture.snapshot.taking(topic)):
        raise HTTPException(502, "nothing was done: no nsqd answers")
    shared = ClientConfig.declared().keys() - {"heartbeat_interval", "read_timeout", "max_msg_size"}
    config = ProducerConfig(**{name: vars(site.config)[name] for name in shared})
    task = topic, messages, rate, Producer(targets, config)
    origin, slash, channel = form["source"].partition("/")
    folder, size = site.options.dead_letter_dir, site.config.max_msg_size
    if origin and not slash and folder:
        try:
            files = await asyncio.to_thread(dead_letter_files, folder)
        except OSError as error:
            raise HTTPException(500, f"nothing was done: {folder}: {error.strerror}") from None
        if origin not in files:
            raise HTTPException(404, "nothing was done: there is no such file of dead letters")
        path, turn = os.path.join(folder, origin), site.republications.turn
        return LettersAgain(*task, path, size, turn)
    if not (slash and form["finish"]):
        return Republication(*task)
    if topic == origin:
        raise HTTPException(400, "nothing was done: messages would come back to their own topic")
    snapshot = site.watch.picture.snapshot
    nsqds = snapshot.having(origin, channel)
    if not nsqds:
        raise HTTPException(409, f"nothing was done: no reachable nsqd has {origin}/{channel}")
    urls = [name for name, node in snapshot.nodes.items() if node.tcp in nsqds]
    source = Subscription(topic=origin, channel=channel, nsqds=tuple(nsqds))
    consumer = ConsumerConfig(**{**vars(site.config), "max_in_flight": MAX_MESSAGES})
    return ChannelAgain(*task, source, urls, consumer)


def _edited(body: bytes, texts: Sequence[str], position: int) -> bytes:
    """Return the body, or the text that a browser sent for it; raises HTTPException.

    Browsers send line ends as CRLF; no body with CR is shown as text.
    """
    if "" in texts:
        text = f"message {position + 1} is empty, which nsqd refuses: go back and do not choose it"
        raise HTTPException(400, f"nothing was done: {text}")
    return texts[0].replace("\r\n", "\n").encode() if texts else body


async def publications(site: Site, request: Request) -> WebPage:
    """Show what is being published again, and the log of each message."""
    return WebPage("publications.html", {"jobs": [*site.republications.jobs.items()][::-1]})
