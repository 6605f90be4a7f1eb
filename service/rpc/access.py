"""Who asks, and what they may: decided before a call's first message is read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequestError
from service.errors import CallerLimitError, UnauthenticatedError
from service.keys import ApiKey, KeyFile
from service.rpc.limits import MAX_PRIORITY

HEALTH_PREFIX = "/grpc.health."
REFLECTION_PREFIX = "/grpc.reflection."
_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        name: for the log: `key:NAME`, `cert:NAME`, or empty where everybody may ask.
        scope: whose sessions these are; callers of different scopes never share one. None may not keep any.
        max_turns: turns at once, waiting ones too; None is unbounded here.
        max_priority: the highest that may be asked for.
    """

    name: str = ""
    scope: str | None = ""
    max_turns: int | None = None
    max_priority: int = MAX_PRIORITY

    def check(self, session_id: str, priority: int) -> None:
        """InvalidRequestError for what this caller may not ask."""
        if session_id and self.scope is None:
            raise InvalidRequestError("session_id", "this key may keep no sessions; leave it unset")
        if priority > self.max_priority:
            raise InvalidRequestError("priority", f"this key may ask for {self.max_priority} at most; got {priority}")


ANYBODY = Caller()


class Access:
    """Tells callers apart by API key, else by client certificate, else not at all.

    Health stays open, as probes carry no keys. `open_reflection` leaves the descriptions of the services open too.
    """

    def __init__(self, keys: KeyFile | None = None, *, open_reflection: bool = False) -> None:
        self._keys = keys
        self._open = (HEALTH_PREFIX, REFLECTION_PREFIX) if open_reflection else (HEALTH_PREFIX,)

    def caller(
        self,
        method: str,
        metadata: Iterable[tuple[str, Any]] | None,
        peer: Mapping[str, Iterable[bytes]],
    ) -> Caller:
        """Who asks, from the call's metadata and its connection's authentication (gRPC's auth_context).

        Raises:
            UnauthenticatedError: the same one whatever was wrong.
        """
        if self._keys is None:
            return _by_certificate(peer)
        if method.startswith(self._open):
            return ANYBODY
        key = self._keys.find(_bearer(metadata))
        if key is None:
            raise UnauthenticatedError
        return _by_key(key)


class CallerTurns:
    """How many turns each caller has, waiting or playing."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()

    @contextmanager
    def one_more(self, caller: Caller) -> Iterator[None]:
        """Count one turn while it lasts. CallerLimitError if that is one too many."""
        if caller.max_turns is not None and self._turns[caller.name] >= caller.max_turns:
            raise CallerLimitError(caller.max_turns)
        self._turns[caller.name] += 1
        try:
            yield
        finally:
            self._turns[caller.name] -= 1
            if not self._turns[caller.name]:
                del self._turns[caller.name]


def _bearer(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """The key of `authorization: Bearer KEY`; empty, which is nobody's key, unless there is exactly one."""
    given = [value for name, value in metadata or () if name == "authorization"]
    if len(given) != 1 or not isinstance(given[0], str) or not given[0].lower().startswith(_SCHEME):
        return ""
    return given[0][len(_SCHEME) :].strip()


def _by_key(key: ApiKey) -> Caller:
    scope = None if key.session_scope is None else f"key:{key.session_scope}"
    return Caller(f"key:{key.name}", scope, key.max_turns, key.max_priority)


def _by_certificate(peer: Mapping[str, Iterable[bytes]]) -> Caller:
    """By the first alternative name of a certificate that the client CA has signed, else by its common name."""
    pem = b"".join(peer.get("x509_pem_cert", ()))
    if not pem:
        return ANYBODY
    names = [*peer.get("x509_subject_alternative_name", ()), *peer.get("x509_common_name", ())]
    # Different bytes stay different, and none of them moves a terminal's cursor.
    text = next((name.decode("latin-1").encode("unicode_escape").decode("ascii") for name in names if name), "")
    identity = f"cert:{text}" if text else f"cert:sha256:{hashlib.sha256(pem).hexdigest()}"
    return Caller(identity, identity)
