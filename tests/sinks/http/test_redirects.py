"""Redirects are failures, or followed where they leave the request what it is."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from nsqtools.policy.verdicts import Statuses, Verdict
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.post import DONE, Outcome, Post
from tests.support.archiving import batch
from tests.support.clock import virtual
from tests.support.delivering import LONGEST, WALL, Answer, Scripted
from tests.support.requesting import receive

SECRETS = [(b"Authorization", b"Bearer x"), (b"cookie", b"id=1"), (b"X-Other", b"kept")]


def to(place: str, status: int = 307) -> Answer:
    return Answer(status, headers={"Location": place})


async def follow(
    *answers: Answer, b: Sequence[Answer] = (), **flags: Any
) -> tuple[Outcome, Scripted]:
    """Host a gives these answers, b gives its own first, and all else is content."""
    web = Scripted()
    web.next |= {"a": list(answers), "b": list(b)}
    flags = flags or {"post": ["http://a/x/start?x=1"]}
    (endpoint,) = make_endpoints(**flags, headers=SECRETS)
    post = Post(
        [endpoint],
        web,
        Statuses(),
        timeout=20.0,
        longest_delay=LONGEST,
        wall=lambda: WALL,
        follow_redirects=True,
    )
    messages = batch(b"body")
    outcome, _ = await post.send(endpoint.name, [(messages, messages[0])])
    return outcome, web


@virtual
@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308, 399])
async def test_a_post_is_followed_where_its_body_is_kept_and_a_get_wherever_it_leads(
    status: int,
) -> None:
    outcome, web = await follow(to("http://a/end", status))
    assert (outcome is DONE) == (status in (307, 308))
    assert len(web.sent) == (2 if outcome is DONE else 1)
    first, last = (receive(web.sent[n].request) for n in (0, -1))
    assert (last.method, last.body) == (b"POST", b"body")
    assert sorted(last.headers) == sorted(first.headers)

    outcome, web = await follow(to("/end", status), get=["http://a/%s"])
    followed = status in (301, 302, 303, 307, 308)
    targets = [receive(each.request).target for each in web.sent]
    assert targets == [b"/body", b"/end"][: 1 + followed]
    assert {each.request.method for each in web.sent} == {"GET"}


@virtual
@pytest.mark.parametrize(
    ("place", "target", "kept"),
    [
        ("/end", "http://a/end", True),
        ("end", "http://a/x/end", True),
        ("?y=2", "http://a/x/start?y=2", True),
        ("../end#part", "http://a/end#part", True),
        ("http://a:80/end", "http://a/end", True),
        ("//b:81/end", "http://b:81/end", False),
        ("https://a/end", "https://a/end", False),
        ("http://a:81/end", "http://a:81/end", False),
        ("http://user:password@b/end", "http://user:password@b/end", False),
        ("file:///etc/passwd", None, False),
        ("ftp://a/end", None, False),
        ("//a:x/", None, False),
    ],
)
async def test_a_place_is_relative_and_credentials_stay_with_their_origin(
    place: str, target: str | None, kept: bool
) -> None:
    outcome, web = await follow(to(place))
    assert (outcome is DONE) == (target is not None)
    assert len(web.sent) == (2 if target else 1)
    if target:
        request = web.sent[1].request
        assert request.url == target
        assert b"#" not in receive(request).target
        assert ("authorization" in request.headers, "cookie" in request.headers) == (kept, kept)
        assert request.headers.get("x-other") == ("kept" if kept else None)
        assert request.headers.get_list("host") == [httpx.URL(target).netloc.decode()]


@virtual
async def test_neither_tls_is_left_nor_do_credentials_that_were_dropped_come_back() -> None:
    outcome, web = await follow(to("https://b/"), b=[to("http://b/end")])
    assert outcome.verdict is Verdict.RETRY
    assert web.hosts() == ["a", "b"]
    outcome, web = await follow(to("http://b/"), b=[to("http://a/end")])
    assert outcome is DONE
    assert web.hosts() == ["a", "b", "a"]
    assert "authorization" not in web.sent[2].request.headers
