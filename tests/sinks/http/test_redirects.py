"""Redirects are failures, or followed where they leave the request what it is."""

from __future__ import annotations

import httpx
import pytest

from nsqtools.policy.verdicts import Statuses, Verdict
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.post import DONE, Outcome, Post
from tests.support.archiving import batch
from tests.support.clock import virtual
from tests.support.delivering import WALL, Answer, Scripted
from tests.support.requesting import receive

SECRETS = [(b"Authorization", b"Bearer x"), (b"cookie", b"id=1"), (b"X-Other", b"kept")]


def to(place: str, status: int = 307, after: float = 0.0) -> Answer:
    return Answer(status, headers={"Location": place}, after=after)


async def follow(
    *answers: Answer, url: str = "http://a/start?x=1", get: bool = False, b: Answer | None = None
) -> tuple[Outcome, Scripted]:
    """Host a gives these answers, b gives its own first, and all else is content."""
    web = Scripted()
    web.next |= {"a": list(answers), "b": [b] if b else []}
    flags = {"get": [url]} if get else {"post": [url]}
    (endpoint,) = make_endpoints(**flags, headers=SECRETS)  # type: ignore[arg-type]
    post = Post([endpoint], web, Statuses(), timeout=20.0, wall=lambda: WALL, follow_redirects=True)
    messages = batch(b"body")
    outcome, _ = await post.send(endpoint.name, [(messages, messages[0])])
    return outcome, web


@virtual
class TestWhichAreFollowed:
    @pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308, 399])
    async def test_a_post_where_its_body_is_kept_and_a_get_wherever_it_leads(
        self, status: int
    ) -> None:
        outcome, web = await follow(to("http://a/end", status))
        assert (outcome is DONE) == (status in (307, 308))
        assert len(web.sent) == (2 if outcome is DONE else 1)
        first, last = (receive(web.sent[n].request) for n in (0, -1))
        assert (last.method, last.body) == (b"POST", b"body")
        assert sorted(last.headers) == sorted(first.headers)

        outcome, web = await follow(to("/end", status), url="http://a/%s", get=True)
        followed = status in (301, 302, 303, 307, 308)
        targets = [receive(each.request).target for each in web.sent]
        assert targets == [b"/body", b"/end"][: 1 + followed]
        assert {each.request.method for each in web.sent} == {"GET"}

    async def test_a_redirect_out_of_tls_is_not_followed(self) -> None:
        outcome, web = await follow(to("https://b/"), b=to("http://b/end"))
        assert outcome.verdict is Verdict.RETRY
        assert web.hosts() == ["a", "b"]


@virtual
class TestWhereTheyLead:
    @pytest.mark.parametrize(
        ("place", "target"),
        [
            ("/end", "http://a/end"),
            ("end", "http://a/x/end"),
            ("?y=2", "http://a/x/start?y=2"),
            ("//b:81/end", "http://b:81/end"),
            ("../end#part", "http://a/end#part"),
        ],
    )
    async def test_a_place_is_relative_to_where_it_was_given(self, place: str, target: str) -> None:
        outcome, web = await follow(to(place), url="http://a/x/start?x=1")
        assert outcome is DONE
        assert web.sent[1].request.url == target
        assert b"#" not in receive(web.sent[1].request).target

    @pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://a/end", "//a:x/"])
    async def test_what_is_no_place_on_the_web_is_a_failure(self, place: str) -> None:
        outcome, web = await follow(to(place))
        assert outcome is not DONE
        assert len(web.sent) == 1

    @pytest.mark.parametrize(
        ("place", "kept"),
        [
            ("http://a/end", True),
            ("http://a:80/end", True),
            ("http://b/end", False),
            ("https://a/end", False),
            ("http://a:81/end", False),
            ("http://user:password@b/end", False),
        ],
    )
    async def test_credentials_stay_with_their_origin(self, place: str, kept: bool) -> None:
        outcome, web = await follow(to(place))
        assert outcome is DONE
        headers = web.sent[1].request.headers
        assert ("authorization" in headers, "cookie" in headers) == (kept, kept)
        assert headers.get("x-other") == ("kept" if kept else None)
        assert headers.get_list("host") == [httpx.URL(place).netloc.decode()]

    async def test_credentials_that_were_dropped_do_not_come_back(self) -> None:
        outcome, web = await follow(to("http://b/"), b=to("http://a/end"))
        assert outcome is DONE
        assert web.hosts() == ["a", "b", "a"]
        assert "authorization" not in web.sent[2].request.headers
