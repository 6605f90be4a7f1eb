"""Which model is served, and under which names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.client import ChatClient, ServerInfo
from service.gateway.errors import ApiError

FRESH_S = 30.0


@dataclass(frozen=True, slots=True)
class _Known:
    info: ServerInfo
    read_s: float


class ServedModel:
    """What the servers say that they serve. Kept for a while: it changes only when they are replaced."""

    def __init__(self, other_names: Sequence[str]) -> None:
        self._other_names = tuple(other_names)
        self._known: _Known | None = None

    async def named(self, client: ChatClient, name: str | None) -> ServerInfo:
        """The model that `name` means; None is whichever is served. ApiError 404 for another one's name."""
        info = await self._info(client)
        if name is None or name in (info.model, *self._other_names):
            return info
        info = await self.now(client)  # the caller's key is asked for, and a new model is known
        if name != info.model:
            raise ApiError(
                404,
                f"model: there is no model {name!r} here; {info.model!r} is served",
                code="model_not_found",
                param="model",
            )
        return info

    async def now(self, client: ChatClient) -> ServerInfo:
        """Asks a server."""
        info = await client.server_info()
        self._known = _Known(info, time.monotonic())
        return info

    def objects(self, info: ServerInfo) -> list[dict[str, Any]]:
        """As /v1/models lists them: the model, once for each name."""
        return [self.object(info, name) for name in dict.fromkeys((info.model, *self._other_names))]

    def object(self, info: ServerInfo, name: str) -> dict[str, Any]:
        """The model under one of its names, with what Soloist says of it."""
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "soloist",
            "soloist": {
                "model": info.model,
                "version": info.version,
                "device": info.device,
                "precision": info.precision,
                "decoder": info.decoder,
                "numerics_fingerprint": info.numerics_fingerprint,
                "graphs": {"enabled": info.graphs.enabled, "eager_reason": info.graphs.eager_reason},
                "limits": dict(info.limits),
            },
        }

    async def _info(self, client: ChatClient) -> ServerInfo:
        if self._known is not None and time.monotonic() - self._known.read_s < FRESH_S:
            return self._known.info
        return await self.now(client)
