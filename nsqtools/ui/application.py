"""The routes of the page, and its own two files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from nsqtools.ui.access import AccessGuard
from nsqtools.ui.actions import ask, change
from nsqtools.ui.overview import doctor, nodes, overview, topic
from nsqtools.ui.sample import dead, edit, publications, publish, sample, sample_form, stop
from nsqtools.ui.site import ERRORS, FILES, notice_of, posted, viewed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from nsqtools.ui.site import Site

_VIEWS = {
    "/": overview,
    "/nodes": nodes,
    "/doctor": doctor,
    "/topic/{topic}": topic,
    "/topic/{topic}/{channel}": topic,
    "/change": ask,
    "/messages/{topic}": sample_form,
    "/messages/{topic}/{channel}": sample_form,
    "/dead": dead,
    "/dead/{file}": dead,
    "/publications": publications,
}
_FORMS = {"/change": change, "/edit": edit, "/publish": publish, "/stop": stop}
_SAMPLES = ("/messages/{topic}", "/messages/{topic}/{channel}")


def application(site: Site) -> AccessGuard:
    """Return the ASGI application; every request passes the guard first."""

    async def refused(request: Request, error: Exception) -> Response:
        return site.respond(notice_of(error), request)

    routes: list[BaseRoute] = [
        *(Route(path, viewed(site, view), methods=["GET"]) for path, view in _VIEWS.items()),
        *(Route(path, posted(site, view), methods=["POST"]) for path, view in _FORMS.items()),
        *(Route(path, posted(site, sample, changes=False), methods=["POST"]) for path in _SAMPLES),
        Mount("/static", StaticFiles(directory=FILES / "static")),
    ]
    if site.base:
        pages = Mount(site.base, Router(routes, redirect_slashes=False))
        routes = [Route(site.base, RedirectResponse(site.url())), pages]
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(ERRORS, refused))
    app.router.redirect_slashes = False
    return AccessGuard(app, site.options)
