"""Changes of topics and channels: what would happen, the confirmation, and the outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, get_args

from starlette.exceptions import HTTPException

from nsqtools.engine.administration import carry_out, survey
from nsqtools.engine.changes import (
    Survey,
    Verb,
    find_producer,
    loss,
    plan,
    plan_tombstone,
)
from nsqtools.ui.site import SentForm, WebPage, target_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqtools.engine.changes import Discard, Stages, Target
    from nsqtools.ui.site import Site

_VERBS = (*get_args(Verb), "tombstone")


class Wish(NamedTuple):
    """A change that a visitor wants: on all servers, or only on ``nsqd``, its HTTP address.

    If it ``loses`` messages, the name must be typed.
    """

    verb: str
    target: Target
    nsqd: str
    loses: bool


def _wish(form: SentForm) -> Wish:
    """Check what a visitor has sent; raises ConfigError and HTTPException."""
    verb, target, nsqd = form["verb"], target_of(form), form["nsqd"]
    if verb not in _VERBS or (verb == "tombstone" and (target.channel or not nsqd)):
        raise HTTPException(400, f"no such change: {verb[:20]}")
    return Wish(verb, target, nsqd, verb in ("delete", "empty"))


async def _prepare(site: Site, wish: Wish) -> tuple[Survey, Stages]:
    """Ask the servers and plan the requests; raises HTTPException if there is nothing to do."""
    found = await survey(site.servers, wish.target.topic)
    if wish.verb == "tombstone":
        producer = find_producer(wish.nsqd, found)
        if producer is None or wish.target.topic not in producer.topics:
            text = f"nsqlookupd does not list {wish.target} on nsqd {wish.nsqd}"
            raise HTTPException(404, text)
        return found, plan_tombstone(wish.target.topic, producer, found)
    if wish.nsqd:
        # A named nsqd counts as given: a topic is created there although it is not listed.
        held = [each for each in found.holdings if each.node.name == wish.nsqd]
        found = Survey((), tuple(replace(each, given=True) for each in held))
    stages = plan(wish.verb, wish.target, found)  # type: ignore[arg-type] # checked by _wish
    if not any(stages):
        where = f" on nsqd {wish.nsqd}" if wish.nsqd else ""
        raise HTTPException(404, f"no server has {wish.target}{where}")
    return found, stages


async def ask(site: Site, request: Request) -> WebPage:
    """Show what a change would do, with a form to confirm it."""
    wish = _wish(SentForm(request.query_params))
    async with site.asking():
        found, stages = await _prepare(site, wish)
    discard: Discard = "channels" if wish.verb == "delete" else "messages"
    context = {
        "wish": wish,
        "lost": loss(discard, wish.target, found.holdings) if wish.loses else None,
        "steps": [step for steps in stages for step in steps],
        "nodes": [each.node.name for each in found.holdings if each.has(wish.target)],
        "silent": [each.node.name for each in found.holdings if each.may_have(wish.target)],
    }
    return WebPage("change.html", context, live=False)


async def change(site: Site, request: Request, form: SentForm) -> Response:
    """Carry out a confirmed change, log it, and show the outcome on each server."""
    wish = _wish(form)
    name = wish.target.names[-1]
    if wish.loses and form["confirm"] != name:
        raise HTTPException(409, f"nothing was done: type the name {name} to {wish.verb} it")
    _, stages = await _prepare(site, wish)
    names = {"topic": wish.target.topic, "channel": wish.target.channel, "node": wish.nsqd}
    of = "topic_producer" if wish.verb == "tombstone" else wish.target.kind
    action = f"{wish.verb}_{of}"  # as nsqadmin names it
    await site.audit.record(request, action, "begun", **names)
    taken = await carry_out(site.servers, stages)
    outcome = [
        {"server": step.name, "error": str(step.error or ""), "note": step.note} for step in taken
    ]
    site.audit.notify(request, action, **names)
    await site.audit.record(request, action, "done", **names, servers=outcome)
    await site.watch.refresh()
    status = 502 if any(step.error for step in taken) else 200
    context = {"wish": wish, "taken": taken}
    return site.respond(WebPage("outcome.html", context, live=False, status=status), request)
