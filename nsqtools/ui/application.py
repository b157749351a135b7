"""The routes of the page, and its own two files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route

from nsqtools.ui.access import Guard
from nsqtools.ui.actions import ask, change
from nsqtools.ui.overview import doctor, nodes, overview, topic
from nsqtools.ui.site import FILES, posted, viewed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from nsqtools.ui.site import Site

_FILES = {"ui.js": "text/javascript", "ui.css": "text/css"}


def application(site: Site) -> Guard:
    """Return the ASGI application; every request passes the guard first."""
    routes: list[BaseRoute] = [
        Route("/", viewed(site, overview)),
        Route("/nodes", viewed(site, nodes)),
        Route("/doctor", viewed(site, doctor)),
        Route("/topic/{topic}", viewed(site, topic)),
        Route("/topic/{topic}/{channel}", viewed(site, topic)),
        Route("/change", viewed(site, ask), methods=["GET"]),
        Route("/change", posted(site, change), methods=["POST"]),
        *(Route(f"/{name}", partial(_file, name)) for name in _FILES),
    ]
    if site.base:
        routes = [
            Route(site.base, RedirectResponse(site.url())),
            Mount(site.base, routes=routes),
        ]
    refused = partial(_refused, site)
    app = Starlette(routes=routes, exception_handlers={HTTPException: refused})
    app.router.redirect_slashes = False
    return Guard(app, site.options)


async def _file(name: str, request: Request) -> Response:
    return Response((FILES / "static" / name).read_bytes(), media_type=_FILES[name])


async def _refused(site: Site, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "there is no such page" if error.detail == "Not Found" else error.detail
    return site.notice(request, text, error.status_code)
