"""The pages with messages: of a channel, copies of a topic, dead letters; and publishing again."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import secrets
from functools import partial
from hashlib import sha256
from itertools import accumulate
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from nsqtools.config.connection import ConsumerConfig
from nsqtools.config.consuming import StopOptions
from nsqtools.engine.runner import Runner
from nsqtools.errors import ConfigError, NSQError
from nsqtools.names import check_name, is_ephemeral
from nsqtools.records.bodies.expressions import fulfilling
from nsqtools.records.readable import ReadableBody, readable
from nsqtools.redrive.publishedlines import covers
from nsqtools.redrive.redriver import DEAD
from nsqtools.redrive.republication import lines_published, origin_in_file, origin_of
from nsqtools.sinks.deadletters import SUFFIX, dead_letter_files, read_dead_letters
from nsqtools.sinks.peek import Glimpse
from nsqtools.ui.site import SentForm, WebPage, target_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqtools.engine.changes import Target
    from nsqtools.names import Address
    from nsqtools.proto.messages import Message
    from nsqtools.redrive.republication import Republication
    from nsqtools.sinks.deadletters import DeadLetter
    from nsqtools.ui.site import Site

MAX_MESSAGES = 100
_MAX_SHOWN = 64 << 10
_MAX_BYTES = 768 << 10  # of the messages of a page: a form has them in base64 and percent-encoded
_IDLE = 2.0
_UNSENT = SentForm()


class ShownMessage(NamedTuple):
    """A message with its origin, the JSON text of its body if it was decoded, and a reason."""

    origin: str
    message: Message | DeadLetter
    decoded: bytes | None
    reason: str = ""

    @property
    def text(self) -> bytes:
        """What is shown and filtered."""
        return self.message.body if self.decoded is None else self.decoded

    @property
    def readable(self) -> ReadableBody:
        """The text in a readable form."""
        return readable(self.text, _MAX_SHOWN)

    @property
    def pick(self) -> str:
        """What sends the message back in a form; empty if it is too large for one."""
        body = self.message.body
        if len(body) > _MAX_BYTES:
            return ""
        return json.dumps([self.origin, base64.b64encode(body).decode()])

    def has(self, text: str) -> bool:
        """Whether a text is in the body or in the reason, in any case."""
        return text.encode().lower() in self.text.lower() + self.reason.lower().encode()

    def command(self, topic: str) -> str:
        """Return a command that publishes the message again."""
        body = self.message.body
        envelope = {"body_b64": base64.b64encode(body).decode()}
        if readable(body, _MAX_SHOWN).kind != "bytes":
            envelope = {"body": body.decode()}
        return f"nsqtools pub --topic {quote(topic)} --json {quote(json.dumps(envelope))}"


async def sample_form(
    site: Site, request: Request, form: SentForm = _UNSENT, **found: Any
) -> WebPage:
    """Offer to look at messages of a channel, or at copies of a topic's; show those found."""
    target = target_of(request.path_params)
    row = site.watch.picture.rows.get((target.topic, target.channel))
    if row is None:
        raise HTTPException(404, "no answering nsqd has it")
    context = {
        "target": target,
        "row": row,
        "form": form,
        "most": MAX_MESSAGES,
        "back": target.topic.removesuffix(DEAD),
        "source": "/".join(target.names) if target.channel else "",
        "messages": None,
        "fault": "",
        "worn": site.worn.get(target, 0),
    }
    return WebPage("sample.html", context | found, live=False)


async def sample(site: Site, request: Request, form: SentForm) -> Response:
    """Receive messages, give them back, and show those that the filters let through.

    A channel is only looked at by visitors who may change things: it costs an attempt. A copy of a
    topic comes through an ephemeral channel on nsqds where the topic has a channel that stays: the
    first channel would take the messages waiting in the topic, and nsqd would drop them with it.
    Worn messages are received only if the form says so, but for the first that tells of the others.
    """
    target, refusal = target_of(request.path_params), request.state.visitor.refusal
    topic, channel = target.topic, target.channel
    count = int(form.number("count", 10, 1, MAX_MESSAGES))
    if channel and refusal:
        text = f"looking at a channel costs each message an attempt; {refusal}"
        raise HTTPException(403, text)
    if is_ephemeral(channel):
        text = f"nsqd would delete {channel} at the end of a look, with its messages"
        raise HTTPException(409, f"{text}: an ephemeral channel needs a consumer")
    if site.worn.get(target) and not form["worn"]:
        text = f"nothing was done: messages of {target} have {site.worn[target]} attempts"
        raise HTTPException(409, f"{text}: go back, and say that another one is right")
    if form["jq"]:
        await fulfilling(form["jq"], ())  # before anything is received: it may be invalid
    async with site.asking():
        snapshot = await site.watch.now(topic)  # the picture may be older than a deletion
        nsqds = snapshot.having(topic, channel, count if channel else None)
        if not nsqds:
            is_known = not channel and snapshot.having(topic, None)
            text = "no channel that stays" if is_known else "no reachable nsqd"
            raise HTTPException(409, f"topic {topic} has {text}: there is nothing to look at")
        names = {"topic": topic, "channel": channel}
        action = "peek_channel" if channel else "copy_topic"
        await site.audit.record(request, action, "begun", **names)
        found = await _receive(site, target, nsqds, count, careful=not form["worn"])
        await site.audit.record(request, action, "done", **names, received=len(found))
        texts, fault = await _decoded(site, [message.body for _, message in found])
        received = [
            ShownMessage(origin_of(nsqd, message), message, text)
            for (nsqd, message), text in zip(found, texts, strict=True)
        ]
        kept, failure = await _filtered(received, form)
    sizes = accumulate(len(each.message.body) for each in kept)
    fitting = [each for each, size in zip(kept, sizes, strict=True) if size <= _MAX_BYTES]
    messages = fitting or kept[:1]
    shown = {"messages": messages, "received": len(found), "left_out": len(kept) - len(messages)}
    shown["fault"] = fault or failure
    return site.respond(await sample_form(site, request, form, **shown), request)


async def _receive(
    site: Site, target: Target, nsqds: Sequence[Address], count: int, *, careful: bool
) -> list[tuple[Address, Message]]:
    """Receive messages of a channel, or copies; a ``careful`` look ends at a worn message."""
    careful = careful and bool(target.channel)
    glimpse = Glimpse(count, careful=careful)
    values = {**vars(site.config), "max_in_flight_bytes": 8 << 20}
    values["max_in_flight"] = len(nsqds) if careful else count
    stop = StopOptions(idle_timeout=_IDLE, max_duration=_IDLE if target.channel else 5 * _IDLE)
    channel = target.channel or f"ui{random.randrange(10**6):06d}#ephemeral"  # noqa: S311
    config = ConsumerConfig(**values)
    runner = Runner([target.topic], channel, glimpse, config, nsqds=nsqds, stop=stop)
    glimpse.go_on = partial(runner.set_max_in_flight, count)
    await runner.run()
    if target.channel:
        site.note_attempts(target, glimpse.attempts)
    return glimpse.found


async def _decoded(site: Site, bodies: Sequence[bytes]) -> tuple[list[bytes | None], str]:
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
    messages: Sequence[ShownMessage], form: SentForm
) -> tuple[list[ShownMessage], str]:
    """Return the messages with the text and the jq condition of a form.

    If the condition takes too long, return those with the text, and the error.
    """
    kept = [each for each in messages if each.has(form["q"])]
    if not form["jq"]:
        return kept, ""
    texts = [each.text.decode(errors="replace") for each in kept]
    try:
        return [kept[position] for position in await fulfilling(form["jq"], texts)], ""
    except ConfigError as error:
        return kept, str(error)


async def dead(site: Site, request: Request) -> WebPage:
    """List the files of the dead-letter directory, or a part of one of them."""
    folder, name = site.options.dead_letter_dir, request.path_params.get("file", "")
    if not folder:
        raise HTTPException(404, "start nsqtools ui with --dead-letter-dir to see dead letters")
    form = SentForm(request.query_params)
    start, q = form["start"] or "0", form["q"]
    files = await asyncio.to_thread(dead_letter_files, folder)
    if not name:
        return WebPage("dead.html", {"files": sorted(files.items()), "file": ""}, live=False)
    if name not in files or not start.isdecimal() or len(start) > 18:
        raise HTTPException(404, "there is no such file of dead letters")
    path, wanted = os.path.join(folder, name), "" if site.decoder else q
    letters, end = await asyncio.to_thread(
        read_dead_letters, path, int(start), MAX_MESSAGES, _MAX_BYTES, wanted
    )
    published = await asyncio.to_thread(lines_published, path, site.config.max_msg_size)
    usable = [each for each in letters if not each.error]
    texts, fault = await _decoded(site, [each.body for each in usable])
    messages = []
    for letter, text in zip(usable, texts, strict=True):
        is_published = covers(published, letter.offset)
        origin = origin_in_file(name, letter, is_published=is_published)
        reason = letter.reason + " (published again)" * is_published
        messages.append(ShownMessage(origin, letter, text, reason))
    topics = {each.topic.removesuffix(DEAD) or name.removesuffix(SUFFIX) for each in usable}
    context = {
        "file": name,
        "messages": [each for each in messages if each.has(q)],
        "back": topics.pop() if len(topics) == 1 else "",
        "fault": fault,
        "errors": [(each.offset, each.error) for each in letters if each.error],
        "next": end if end < files[name].st_size and end > int(start) else 0,
        "q": q,
    }
    return WebPage("dead.html", context, live=False)


async def edit(site: Site, request: Request, form: SentForm) -> Response:
    """Show the chosen messages, to be edited before they are published again."""
    found = _picks(form)
    picks = zip(form.getlist("pick"), found, strict=True)
    source, touched, refusal = form["source"], 0, ""
    if "/" in source:
        async with site.asking():
            try:
                snapshot = await site.watch.now(source.partition("/")[0])
                origins = [origin for origin, _ in found]
                search = await site.republications.search(snapshot, source, origins)
                touched = search.left.messages
            except NSQError as error:
                refusal = str(error)
    context = {
        "picked": [(pick, *each, readable(each[1], _MAX_SHOWN)) for pick, each in picks],
        "target": form["target"],
        "nonce": secrets.token_hex(),
        "source": source,
        "touched": touched,
        "refusal": refusal,
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
    topic, rate = check_name("topic", form["topic"]), form.number("rate", 10, 0.01, 10000)
    messages = []
    for position, (origin, body) in enumerate(_picks(form)):
        edited = form.getlist(f"text{position}")
        if "" in edited:
            text = f"message {position + 1} is empty, which nsqd refuses"
            raise HTTPException(400, f"nothing was done: {text}: go back and do not choose it")
        # Browsers send line ends as CRLF; no body with CR is shown as text.
        new = edited[0].replace("\r\n", "\n").encode() if edited else body
        messages.append((origin, new))
    picture, finish = site.watch.picture, bool(form["finish"])
    job = await site.republications.job(
        picture.snapshot, topic, messages, rate, form["source"], finish=finish
    )
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
    job = site.republications.jobs.get(nonce)
    if not job or job.is_over:
        raise HTTPException(404, "nothing was done: no such publication is under way")
    facts = {"job": nonce, "topic": job.topic}
    await site.audit.record(request, "stop_publishing", "begun", **facts)
    job.stop()
    await site.audit.record(request, "stop_publishing", "done", **facts)
    return RedirectResponse(site.url("publications"), 303)


async def publications(site: Site, request: Request) -> WebPage:
    """Show what is being published again, and the log of each message."""
    return WebPage("publications.html", {"jobs": [*site.republications.jobs.items()][::-1]})
