"""Redirects are failures, or followed where they leave the request what it is."""

from __future__ import annotations

import httpx
import pytest

from nsqtools.policy.verdicts import Statuses, Verdict
from nsqtools.sinks.http.arguments import make_endpoints
from nsqtools.sinks.http.post import DONE, MAX_REDIRECTS, Outcome, Post
from tests.support.archiving import batch
from tests.support.clock import virtual
from tests.support.delivering import WALL, Answer, Scripted
from tests.support.requesting import receive

SECRETS = [(b"Authorization", b"Bearer x"), (b"cookie", b"id=1"), (b"X-Other", b"kept")]


def to(place: str, status: int = 307) -> Answer:
    return Answer(status, headers={"Location": place})


async def follow(
    *answers: Answer,
    url: str = "http://a/start?x=1",
    get: bool = False,
    web: Scripted | None = None,
) -> tuple[Outcome, Scripted]:
    """Host a gives these answers, others are content."""
    web = web or Scripted()
    web.next["a"] = list(answers)
    (endpoint,) = make_endpoints(
        post=() if get else [url], get=[url] if get else (), headers=SECRETS
    )
    post = Post([endpoint], web, Statuses(), timeout=20.0, wall=lambda: WALL, follow_redirects=True)
    messages = batch(b"body")
    outcome, _ = await post.send(endpoint.name, [(messages, messages[0])])
    return outcome, web


@pytest.mark.parametrize("status", [307, 308])
@virtual
async def test_a_post_is_followed_with_its_body_where_that_is_kept(status: int) -> None:
    outcome, web = await follow(to("http://a/end", status))
    assert outcome is DONE
    first, last = (receive(each.request) for each in web.sent)
    assert (last.method, last.target, last.body) == (b"POST", b"/end", b"body")
    assert sorted(last.headers) == sorted(first.headers)


@pytest.mark.parametrize("status", [301, 302, 303])
@virtual
async def test_a_post_never_becomes_something_else(status: int) -> None:
    outcome, web = await follow(to("http://a/end", status))
    assert len(web.sent) == 1
    assert (outcome.verdict, outcome.reason) == (Verdict.RETRY, f"status {status}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@virtual
async def test_a_get_follows_them_all(status: int) -> None:
    outcome, web = await follow(to("/end", status), url="http://a/%s", get=True)
    assert outcome is DONE
    assert [receive(each.request).target for each in web.sent] == [b"/body", b"/end"]
    assert receive(web.sent[1].request).method == b"GET"


@pytest.mark.parametrize("status", [300, 304, 305, 399])
@virtual
async def test_other_statuses_lead_nowhere(status: int) -> None:
    _, web = await follow(to("http://a/end", status), url="http://a/%s", get=True)
    assert len(web.sent) == 1


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
@virtual
async def test_a_place_is_relative_to_where_it_was_given(place: str, target: str) -> None:
    outcome, web = await follow(to(place), url="http://a/x/start?x=1")
    assert outcome is DONE
    assert web.sent[1].request.url == target
    assert b"#" not in receive(web.sent[1].request).target


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
@virtual
async def test_credentials_stay_with_their_origin(place: str, kept: bool) -> None:
    outcome, web = await follow(to(place))
    assert outcome is DONE
    headers = web.sent[1].request.headers
    assert ("authorization" in headers, "cookie" in headers) == (kept, kept)
    assert headers.get("x-other") == ("kept" if kept else None)
    assert headers.get_list("host") == [httpx.URL(place).netloc.decode()]


@virtual
async def test_a_redirect_out_of_tls_is_not_followed() -> None:
    web = Scripted()
    web.next["b"] = [to("http://b/end")]
    outcome, _ = await follow(to("https://b/"), web=web)
    assert (outcome.verdict, outcome.reason) == (Verdict.RETRY, "redirected from https to http")
    assert web.hosts() == ["a", "b"]


@virtual
async def test_credentials_that_were_dropped_do_not_come_back() -> None:
    web = Scripted()
    web.next["b"] = [to("http://a/end")]
    outcome, _ = await follow(to("http://b/"), web=web)
    assert outcome is DONE
    assert web.hosts() == ["a", "b", "a"]
    assert "authorization" not in web.sent[2].request.headers


@virtual
async def test_what_comes_at_the_end_decides() -> None:
    web = Scripted()
    web.next["b"] = [Answer(422, b"no")]
    outcome, _ = await follow(to("http://b/"), web=web)
    assert (outcome.status, outcome.reason, outcome.blames_messages) == (
        422,
        "status 422: no",
        True,
    )


@pytest.mark.parametrize(
    "place", ["ftp://a/", "file:///etc/passwd", "https://", "http://a:port/", "mailto:a@b.test"]
)
@virtual
async def test_what_is_no_url_for_a_request_is_a_failure(place: str) -> None:
    outcome, web = await follow(to(place))
    assert outcome.verdict is Verdict.RETRY
    assert outcome.reason == f"redirected to {place!r}"
    assert len(web.sent) == 1


@virtual
async def test_without_a_place_it_is_a_status_like_others() -> None:
    outcome, web = await follow(Answer(307))
    assert (outcome.verdict, outcome.reason) == (Verdict.RETRY, "status 307")
    assert len(web.sent) == 1


@virtual
async def test_a_loop_ends() -> None:
    outcome, web = await follow(*[to("http://a/start")] * 100)
    assert outcome.verdict is Verdict.RETRY
    assert outcome.reason == f"more than {MAX_REDIRECTS} redirects"
    assert len(web.sent) == MAX_REDIRECTS + 1


@virtual
async def test_the_longest_chain_is_followed_to_its_end() -> None:
    outcome, web = await follow(*[to("http://a/start")] * MAX_REDIRECTS)
    assert outcome is DONE
    assert len(web.sent) == MAX_REDIRECTS + 1


@virtual
async def test_all_of_a_chain_has_the_time_of_one_request() -> None:
    slow = Answer(307, headers={"Location": "/"}, after=3)
    outcome, web = await follow(*[slow] * 9)
    assert outcome.reason == "no response within 20 s"
    assert len(web.sent) == 7


@virtual
async def test_a_target_that_is_not_reached_is_not_the_endpoints_answer() -> None:
    web = Scripted()
    web.ever["b"] = Answer(error=httpx.ConnectError("refused"))
    outcome, _ = await follow(to("http://b/"), web=web)
    assert (outcome.verdict, outcome.reason) == (Verdict.RETRY, "cannot connect: refused")
