"""Pages are drawn once for all who look at them."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from nsqtools.config.ui import UiOptions
from nsqtools.errors import UnreachableError
from nsqtools.ui.access import Visitor
from nsqtools.ui.site import FILES, Site, WebPage, notice_of, viewed


class Pictures:
    """A watch whose pictures come at once, as many as ``left``."""

    picture = None

    def __init__(self, left: int) -> None:
        self.polls = 1
        self._last = left

    async def next_picture(self) -> bool:
        await asyncio.sleep(0)
        return self.polls <= self._last


def request_of(path: str) -> Request:
    headers = [(b"accept", b"text/event-stream"), (b"host", b"127.0.0.1")]
    state = {"visitor": Visitor("ann", "token", "")}
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "state": state}
    return Request({**scope, "query_string": b"", "server": ("127.0.0.1", 1), "scheme": "http"})


async def test_a_live_part_is_drawn_once_after_a_poll_for_all_who_look() -> None:
    nothing: Any = None
    watch: Any = Pictures(2)
    site = Site(watch, UiOptions(), nothing, nothing, nothing, nothing)
    drawn: list[str] = []

    async def view(_: Site, request: Request) -> WebPage:
        drawn.append(request.url.path)
        await asyncio.sleep(0)
        if drawn[:1] == ["gone"]:
            raise UnreachableError("<no answer>")
        return WebPage("publications.html", {"jobs": []})

    async def streams(path: str, count: int) -> list[Any]:
        answers = [await viewed(site, view)(request_of(path)) for _ in range(count)]
        drawn.clear()
        return [answer.body_iterator for answer in answers]  # type: ignore[attr-defined]

    many = await streams("/publications", 20)
    at_once = [await anext(each) for each in many]
    assert {each[:16] for each in at_once} == {"retry: 2000\n\ndat"}
    first = await asyncio.gather(*(anext(each) for each in many))
    assert len(set(first)) == len(drawn) == 1
    assert first[0].startswith("data: <h1>Messages published again")
    watch.polls = 2
    await asyncio.gather(*(anext(each) for each in many))
    assert len(drawn) == 2
    (gone,) = await streams("/other", 1)
    drawn.append("gone")
    await anext(gone)
    assert "&lt;no answer&gt;" in await anext(gone)


def test_a_failing_file_is_told_of_and_any_other_oserror_is_a_bug() -> None:
    page = notice_of(PermissionError(13, "Permission denied", "dead/t.ndjson"))
    assert (page.status, page.context["text"]) == (500, "dead/t.ndjson: Permission denied")
    with pytest.raises(TimeoutError):
        notice_of(TimeoutError())


@pytest.mark.parametrize("name", ["overview", "topic", "nodes", "publications"])
def test_no_live_part_depends_on_who_looks(name: str) -> None:
    text = (FILES / "templates" / f"{name}.html").read_text()
    live = text.partition("{% block live %}")[2].partition("{% endblock %}")[0]
    assert live
    assert "visitor" not in live
    assert "m.list(" not in live  # which has the visitor's token
