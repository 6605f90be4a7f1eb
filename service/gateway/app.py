"""The gateway as one ASGI app: its routes, and what stands around them."""

from __future__ import annotations

from importlib import resources
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from service.client import ChatError, UnauthenticatedError
from service.gateway.answering import AnswerEndpoint, Backend
from service.gateway.asked import asked_chat, asked_completion
from service.gateway.errors import ApiError, api_error_of
from service.gateway.guards import KnownHosts, SafeHeaders, hosts_of
from service.gateway.heads import SoundHeads
from service.gateway.log import Logged
from service.gateway.responses import error_response
from service.gateway.voices import ChatVoice, CompletionVoice

PROBES: Final = ("/healthz", "/readyz")
CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
PAGE: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/stream.js": ("stream.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_PAGE_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_PROBE_DEADLINE_S: Final = 2.0


def build_app(backend: Backend) -> Starlette:
    """Every route, over one backend."""
    chat = AnswerEndpoint(backend, asked_chat, ChatVoice())
    completions = AnswerEndpoint(backend, asked_completion, CompletionVoice())
    models, probes = _Models(backend), _Probes(backend)
    routes: list[BaseRoute] = [
        Route(CHAT, chat, methods=["POST"]),
        Route(COMPLETIONS, completions, methods=["POST"]),
        Route(MODELS, models.all),
        Route(MODELS + "/{name:path}", models.one),
        Route("/healthz", probes.alive),
        Route("/readyz", probes.ready),
    ]
    if backend.settings.page:
        routes += [_static(path, *page) for path, page in PAGE.items()]
    paths = {CHAT, COMPLETIONS, MODELS, *PROBES, *PAGE}
    middleware = [
        Middleware(SafeHeaders),
        Middleware(Logged, paths=paths, quiet=PROBES),
        Middleware(SoundHeads),
        Middleware(KnownHosts, hosts=hosts_of(backend.settings.listen, backend.settings.hosts), open_paths=PROBES),
    ]
    if backend.settings.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=backend.settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
        middleware.insert(0, cors)
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    return app


class _Models:
    """/v1/models."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def all(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": await self._objects(request)})

    async def one(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = {entry["id"]: entry for entry in await self._objects(request)}
        if name not in found:
            raise ApiError(404, f"there is no model {name!r} here", code="model_not_found", param="model")
        return JSONResponse(found[name])

    async def _objects(self, request: Request) -> list[dict[str, object]]:
        try:
            async with self._backend.speaking_as(request.headers) as client:
                info = await self._backend.model.now(client)
        except ChatError as error:
            raise api_error_of(error) from None
        return self._backend.model.objects(info)


class _Probes:
    """Whether this process lives, and whether it should be sent requests."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._reached = False

    async def alive(self, _request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def ready(self, _request: Request) -> Response:
        """Once a server was reached, until this process leaves.

        A gateway whose servers went away later stays ready: it says so in each answer, with the time to ask again, and
        its page too, where a balancer without any gateway could say nothing.
        """
        if self._backend.leaving.announced:
            return PlainTextResponse("leaving\n", 503)
        if not self._reached:
            try:
                async with self._backend.connections.lent() as client:
                    await client.speaking_as(self._backend.own_key.now()).load(deadline_s=_PROBE_DEADLINE_S)
            except UnauthenticatedError:  # who asks for a key is there
                pass
            except ChatError:
                return PlainTextResponse("no server has been reached yet\n", 503)
            self._reached = True
        return PlainTextResponse("ready\n")


def _static(path: str, name: str, media_type: str) -> Route:
    content = resources.files("service.gateway").joinpath("page", name).read_bytes()

    async def give(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_PAGE_HEADERS)

    return Route(path, give)


async def _no_route(request: Request, error: Exception) -> Response:
    """What Starlette refuses by itself: a path or a method that is not there."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = {
        404: f"nothing is served at {request.url.path}; see {CHAT}, {COMPLETIONS} and {MODELS}",
        405: f"{request.method} is not served at {request.url.path}",
    }.get(status, "the request cannot be served")
    return error_response(ApiError(status, message, code={404: "not_found", 405: "method_not_allowed"}.get(status)))
