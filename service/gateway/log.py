"""One line for each request: what was asked of which path, and how it ended. Never what was said, nor who asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.gateway.errors import FAILED, ApiError
from service.gateway.responses import error_response

access = logging.getLogger("soloist.gateway.access")
logger = logging.getLogger("soloist.gateway")
_KEY: Final = "soloist.facts"


class Facts:
    """What the line of one request will say beside its status and time."""

    def __init__(self) -> None:
        self.request_id = ""
        self._fields: dict[str, Any] = {}

    def note(self, **fields: Any) -> None:
        """Say this too. None and 0 are not worth saying."""
        self._fields.update({name: value for name, value in fields.items() if value})

    def failed(self, error: ApiError) -> None:
        """The request ended with this."""
        self.request_id = self.request_id or error.request_id
        self._fields.pop("end", None)
        self.note(error=error.code, param=error.param if error.status == 400 else None)

    def fields(self) -> dict[str, Any]:
        """In the order of the line."""
        return ({"request_id": self.request_id} if self.request_id else {}) | self._fields


def facts_of(scope: Scope) -> Facts:
    """The facts of the request that this scope is of."""
    facts = scope.get(_KEY)
    return facts if isinstance(facts, Facts) else Facts()


class Logged:
    """The outermost app: answers every error, and writes the line. Paths that are not in `paths` are `other`."""

    def __init__(self, app: ASGIApp, paths: Collection[str], quiet: Collection[str]) -> None:
        self._app = app
        self._paths = paths
        self._quiet = quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        facts = Facts()
        asked_s = time.monotonic()
        status: int | None = None
        first_s: float | None = None

        async def noting(message: Message) -> None:
            nonlocal status, first_s
            if message["type"] == "http.response.start":
                status = message["status"]
                first_s = time.monotonic() - asked_s
            await send(message)

        try:
            await self._app({**scope, _KEY: facts}, receive, noting)
        except ApiError as error:
            facts.failed(error)
            if status is None:
                await error_response(error)(scope, receive, noting)
        except Exception:  # a bug of ours
            logger.exception("a request broke")
            broken = ApiError(500, "internal error; the gateway's log has it", kind=FAILED, code="internal_error")
            facts.failed(broken)
            if status is None:
                await error_response(broken)(scope, receive, noting)
        finally:
            self._write(scope, status, time.monotonic() - asked_s, first_s, facts)

    def _write(self, scope: Scope, status: int | None, seconds: float, first_s: float | None, facts: Facts) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        fields = {
            "method": scope["method"] if scope["method"] in _METHODS else "other",
            "path": path,
            "status": status,
            "seconds": round(seconds, 4),
            **({} if first_s is None else {"first_byte_s": round(first_s, 4)}),
            **facts.fields(),
        }
        access.log(logging.DEBUG if path in self._quiet else logging.INFO, "request", extra={"fields": fields})


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
