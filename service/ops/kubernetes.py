"""The cluster's API: three requests about the own pod and its node. The only importer of the `kubernetes` package.

Every call blocks, ends in bounded time, takes bounded memory, and raises nothing but ApiError. Answers are read as
plain JSON: the package's models check more than is asked for here, and take time that a token would wait for.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import urllib3
import urllib3.exceptions
from kubernetes import client, config

from service.ops.cluster_events import Notice

CONTROLLER: Final = "soloist.dev/server"
REQUEST_TIMEOUT_S: Final = (2.0, 3.0)  # to connect, and between two bytes of the answer

_ANSWER_WITHIN_S: Final = 5.0  # all of an answer that is no watch
_WATCH_S: Final = 240  # the API ends a watch after so long, and it is opened again
_WATCH_QUIET_S: Final = 60.0  # a watch without a byte may be a connection that died unheard
_LONGEST_ANSWER: Final = 8 << 20  # an object is 1.5 MB at most
_LONGEST_WATCH: Final = 256 << 20
_PIECE_BYTES: Final = 64 << 10

logging.getLogger("kubernetes.client.rest").setLevel(logging.WARNING)  # writes whole answers at debug


class ApiError(Exception):
    """A request failed. One line. `status` is the answer's, or 0 where none came."""

    def __init__(self, said: str, status: int = 0) -> None:
        super().__init__(said)
        self.status = status

    @property
    def gone(self) -> bool:
        """Whether the version that a watch began with is too old: read anew."""
        return self.status == 410

    @property
    def passes(self) -> bool:
        """Whether the same request may do better later: nobody answered, or somebody who had too much to do."""
        return self.status == 0 or self.status == 429 or self.status >= 500


class NoClusterError(Exception):
    """This process runs in no pod, or its pod has no service account token. One line."""


@dataclass(frozen=True, slots=True)
class PodName:
    """Who and where this server is."""

    name: str
    namespace: str
    node: str


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What the API answers to a patch of the pod. `started_s` is Unix time, None before the kubelet said so."""

    uid: str
    started_s: float | None


def in_cluster() -> client.Configuration:
    """How a pod reaches its API. NoClusterError outside of one."""
    made = client.Configuration()
    try:
        config.load_incluster_config(made)
    except (config.ConfigException, OSError) as error:
        raise NoClusterError(
            f"--kubernetes: this process is in no pod with a service account's token ({error}); leave it off, or set "
            "`automountServiceAccountToken: true`"
        ) from None
    return made


class KubernetesApi:
    """For one pod. Requests may come from two threads: one that watches, one that does the rest."""

    def __init__(self, configuration: client.Configuration, pod: PodName) -> None:
        configuration.retries = False  # who asks decides when to ask again
        configuration.proxy = None  # the API is in this cluster, whatever proxies the environment names
        self.pod = pod
        self._client = client.ApiClient(configuration)
        pools = self._client.rest_client.pool_manager
        # The package reads the answers that are errors by itself, and to their ends.
        pools.request = _bounded(pools.request)
        self._core = client.CoreV1Api(self._client)
        self._events = client.EventsV1Api(self._client)
        self._watching: urllib3.HTTPResponse | None = None
        self._closed = False

    def mark(self, annotations: Mapping[str, str | None]) -> PodFacts:
        """Set and remove (None) annotations of the own pod."""
        with _one_line():
            answer = self._core.patch_namespaced_pod(
                self.pod.name,
                self.pod.namespace,
                {"metadata": {"annotations": dict(annotations)}},
                _content_type="application/merge-patch+json",
                _preload_content=False,
                _request_timeout=REQUEST_TIMEOUT_S,
            )
            pod = json.loads(answer.data)
            started = pod.get("status", {}).get("startTime")
            started_s = datetime.fromisoformat(started).timestamp() if started else None
            return PodFacts(pod["metadata"].get("uid", ""), started_s)

    def tell(self, notice: Notice, uid: str) -> None:
        """Make an Event of the own pod."""
        reason, action, warning = notice.kind.value
        namespace, name = self.pod.namespace, self.pod.name
        body = {
            "metadata": {"name": f"{name[:200]}.{secrets.token_hex(8)}", "namespace": namespace},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": CONTROLLER,
            "reportingInstance": name[:128],
            "action": action,
            "reason": reason,
            "type": "Warning" if warning else "Normal",
            "note": notice.note[:1000],
            "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        }
        with _one_line():
            self._events.create_namespaced_event(
                namespace, body, _preload_content=False, _request_timeout=REQUEST_TIMEOUT_S
            )

    def watch_node(self, version: str | None) -> Iterator[tuple[dict[str, Any] | None, str | None]]:
        """What becomes of the own node after `version`, or, with None, first what it is now.

        Gives (node, the version to go on from), node None where only the version moved. The first pair comes at once
        and says that the watch is open. Ends when the API ends it, when nothing came for long, and by `close`.
        """
        with _one_line():
            since = {} if version is None else {"resource_version": version}
            answer = self._core.list_node(
                field_selector=f"metadata.name={self.pod.node}",
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_S,
                _preload_content=False,
                _request_timeout=(REQUEST_TIMEOUT_S[0], _WATCH_QUIET_S),
                **since,
            )
            self._watching = answer
            try:
                yield None, version
                if self._closed:  # just before there was anything to shut
                    return
                for line in _lines(answer):
                    change = json.loads(line)
                    subject = change["object"]
                    if change["type"] == "ERROR":
                        raise ApiError(f"{subject.get('code')} {subject.get('message')}", int(subject.get("code", 0)))
                    own = change["type"] != "BOOKMARK" and subject["metadata"].get("name") == self.pod.node
                    version = subject["metadata"].get("resourceVersion", version)
                    yield (subject if own else None), version
            except urllib3.exceptions.ReadTimeoutError:
                return
            finally:
                self._watching = None
                answer.close()

    def close(self) -> None:
        """End a watch that waits, from another thread. Other requests end by their time limits."""
        self._closed = True
        watching = self._watching
        if watching is not None:
            with suppress(AttributeError, OSError):  # it ends just now, by itself
                watching.connection.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]


def _bounded(request: Callable[..., urllib3.HTTPResponse]) -> Callable[..., urllib3.HTTPResponse]:
    """`request`, whose answers are all here, but for a watch that is open."""

    def asked(method: str, url: str, **more: Any) -> urllib3.HTTPResponse:
        answer = request(method, url, **more)
        if method == "GET" and answer.status == 200:  # nothing else is asked for by GET
            return answer
        try:
            body = b"".join(_pieces(answer, _LONGEST_ANSWER, _ANSWER_WITHIN_S))
        except BaseException:
            answer.close()
            raise
        # What has come is decoded already.
        headers = {name: value for name, value in answer.headers.items() if name.lower() != "content-encoding"}
        return urllib3.HTTPResponse(body, headers, answer.status, reason=answer.reason, preload_content=True)

    return asked


def _pieces(answer: urllib3.HTTPResponse, most: int, within_s: float = math.inf) -> Iterator[bytes]:
    """An answer as it comes: a read of a whole piece may wait for it as long as single bytes arrive."""
    until_s, count = time.monotonic() + within_s, 0
    while piece := answer.read1(_PIECE_BYTES, decode_content=True):
        count += len(piece)
        if count > most:
            raise ApiError(f"the answer goes on after {most >> 20} MiB")
        yield piece
        if time.monotonic() > until_s:
            raise ApiError(f"the answer is not over after {within_s:.0f} s")


def _lines(answer: urllib3.HTTPResponse) -> Iterator[bytes]:
    """What comes between newlines, as it comes."""
    rest = bytearray()  # grows in place: a line without end would be copied again with each piece
    for piece in _pieces(answer, _LONGEST_WATCH):
        *whole, last = piece.split(b"\n")
        if whole:
            lines = (bytes(rest) + whole[0], *whole[1:])
            rest.clear()
            yield from (line for line in lines if line.strip())
        rest += last
        if len(rest) > _LONGEST_ANSWER:
            raise ApiError("a change of the node that has no end")


@contextmanager
def _one_line() -> Iterator[None]:
    """The package raises its own errors, urllib3's and the system's, and trips over some of its own."""
    try:
        yield
    except ApiError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, client.ApiException):
            cause = cause.__context__
        if cause is None:
            raise ApiError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from None
        raise ApiError(_said(cause), cause.status or 0) from None


def _said(error: client.ApiException) -> str:
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    return " ".join(f"{error.status or ''} {message}".split())[:300]
