"""The pod's part in its cluster: says how busy it is, tells operators what they should see, hears that its node goes.

Two threads of their own do what waits for the API, so that neither the event loop nor the engine does. Nothing that the
API does or fails to do reaches a turn: failures are counted, said once in the log, and tried again later.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from engine.events import EngineEvent
from service.events import ClusterCall, Load
from service.ops.cluster_events import Kind, Notice, Notices, worth_telling
from service.ops.kubernetes import ApiError, KubernetesApi, PodFacts
from service.ops.node_fate import Fate, fate
from service.ops.pod_marks import CLEARED, Marks, PodMarks

logger = logging.getLogger("soloist.cluster")

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_AT_MOST_S: Final = 3600.0  # a wait for what may never come
_FAILING_CLOSE_S: Final = 1.0  # as long as an end waits for an API that did not do as asked when it was asked last


class Asked(Protocol):
    """Hears how each request ended."""

    def __call__(self, operation: ClusterCall, *, failed: bool) -> None: ...


class Cluster:
    """For one pod. `start`, then news from any thread, then `close`.

    Args:
        limit_s: the longest that answers hold Karpenter off; 0 is never.
        on_goes: called once, from a thread of this object, when the node goes for good.
        asked: hears how each request ended, from such a thread too.
    """

    def __init__(self, api: KubernetesApi, limit_s: float, on_goes: Callable[[], None], asked: Asked) -> None:
        self._api = api
        self._holds = limit_s > 0
        self._on_goes = on_goes
        self._asked = asked
        self._news = threading.Condition()  # around all that follows
        self._marks = PodMarks(limit_s)
        self._notices = Notices()
        self._closing = False
        self._fate = Fate.STAYS
        self._failing: set[ClusterCall] = set()
        self._pod: PodFacts | None = None
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, name="cluster-write", daemon=True),
            threading.Thread(target=self._watch, name="cluster-watch", daemon=True),
        ]

    def start(self) -> None:
        """Take off what an earlier process of this pod may have left on it, and begin to watch the node."""
        for thread in self._threads:
            thread.start()

    def show_load(self, load: Load) -> None:
        """How busy the server is now. Never waits for the API."""
        with self._news:
            if self._marks.show(load):
                self._news.notify()

    def engine_event(self, event: EngineEvent) -> None:
        """Listener for the engine's events; nearly all of them are nothing to a cluster. Never waits for the API."""
        if (told := worth_telling(event)) is not None:
            self._hear(*told)

    def close(self, within_s: float) -> None:
        """Leave the pod unmarked, and end. What is not over in time is left behind: the process ends anyway."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._closed.set()
        self._api.close()
        if self._failing - {ClusterCall.WATCH_NODE}:
            within_s = min(within_s, _FAILING_CLOSE_S)
        until_s = time.monotonic() + within_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))

    # The thread that writes.

    def _write(self) -> None:
        while True:
            with self._news:
                now_s = time.monotonic()
                notices = self._notices.take(now_s)
                if self._closing and not notices:
                    break
                marks_s = self._marks.due_s(now_s)
                if marks_s > now_s and not notices:
                    self._news.wait(min(marks_s - now_s, self._notices.due_s() - now_s, _AT_MOST_S))
                    continue
                marks = self._marks.next(now_s) if marks_s <= now_s else None
            if marks is not None:
                self._mark(marks)
            self._tell(notices)
        self._mark(CLEARED)

    def _tell(self, notices: list[Notice]) -> None:
        for told, notice in enumerate(notices):
            try:
                self._api.tell(notice, self._pod.uid if self._pod else "")
            except ApiError as error:
                self._ended((ClusterCall.EVENT,), error)
                if error.passes:
                    with self._news:
                        self._notices.put_back(notices[told:], time.monotonic())
                    return
            else:
                self._ended((ClusterCall.EVENT,), None)

    def _mark(self, marks: Marks) -> None:
        calls = [ClusterCall.DELETION_COST, *([ClusterCall.DO_NOT_DISRUPT] if self._holds else [])]
        age_s = time.time() - self._pod.started_s if self._pod and self._pod.started_s is not None else None
        with self._counted(*calls):
            self._pod = self._api.mark(marks.annotations(time.monotonic(), age_s))
            with self._news:
                self._marks.wrote(marks, time.monotonic())

    # The thread that watches.

    def _watch(self) -> None:
        version: str | None = None
        in_vain = 0
        while not self._closed.is_set():
            try:
                changes = self._api.watch_node(version)
                next(changes)  # it is open
                self._ended((ClusterCall.WATCH_NODE,), None)
                for node, version in changes:  # noqa: B007 - where to go on, if this is the last
                    in_vain = 0
                    if node is not None:
                        self._look_at(node)
            except ApiError as error:
                in_vain += 1
                if error.status:  # that version is too old, or not to be had: read anew
                    version = None
                self._ended((ClusterCall.WATCH_NODE,), error)
            else:
                in_vain = 0
            # Not all at once, where a whole fleet has lost its API.
            self._closed.wait(random.uniform(0.0, min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**in_vain)))

    def _look_at(self, node: Mapping[str, object]) -> None:
        seen = fate(node)
        if seen is self._fate or self._fate is Fate.GOES:
            return
        self._fate = seen
        logger.info("node", extra={"fields": {"node": self._api.pod.node, "fate": seen.value}})
        with self._news:
            self._marks.give_way(yes=seen is not Fate.STAYS)
            self._news.notify()
        if seen is Fate.TOLD_TO_GO:
            self._hear(Kind.NODE_TOLD_TO_GO, "the node is tainted for disruption: Karpenter is not held off any more")
        elif seen is Fate.GOES:
            self._hear(Kind.NODE_GOES, "the node is being deleted: turns are handed over ahead of SIGTERM")
            self._on_goes()

    # Both.

    def _hear(self, kind: Kind, what: str, about: str = "") -> None:
        with self._news:
            if self._notices.hear(kind, what, time.monotonic(), about):
                self._news.notify()

    @contextmanager
    def _counted(self, *calls: ClusterCall) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            self._ended(calls, error)
        else:
            self._ended(calls, None)

    def _ended(self, calls: tuple[ClusterCall, ...], error: ApiError | None) -> None:
        if error is not None and (self._closed.is_set() or error.gone):
            return  # a watch that was ended from here, or one that begins anew
        for call in calls:
            self._asked(call, failed=error is not None)
            was_failing = call in self._failing
            if error is not None and not was_failing:
                self._failing.add(call)
                fields = {"operation": call.value, "error": str(error)}
                logger.warning(
                    "the cluster's API does not do as asked; turns go on as before", extra={"fields": fields}
                )
            elif error is None and was_failing:
                self._failing.discard(call)
                logger.info("the cluster's API does as asked again", extra={"fields": {"operation": call.value}})
