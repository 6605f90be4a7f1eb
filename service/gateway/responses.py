"""Responses that are made in more than one place."""

from __future__ import annotations

from starlette.responses import Response

from service.gateway.errors import ApiError


def error_response(error: ApiError) -> Response:
    """The error as OpenAI's clients read it."""
    return Response(error.encoded(), error.status, error.headers(), media_type="application/json")
