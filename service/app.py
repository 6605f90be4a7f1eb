"""Builds every part, wires them together, and owns their life: start, serve, drain, stop. Decides nothing itself.

Importing this loads no torch: the engine's thread does, while health and reflection are served already. The file is
longer than others because the order in which parts begin and end is its subject, and is best seen in one place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, cast

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.events import EngineEvent, Listener, VerifyMismatch
from service.conversation import Conversations
from service.errors import EngineLostError, loggable
from service.events import DrainCause, Load, ServiceEvent, TokenMade
from service.keys import KeyFileError
from service.ops.drain import Drain, DrainTimes, Phase
from service.ops.health import Health, Readiness
from service.ops.load_report import TRAILER, LoadReport
from service.ops.logs import LogEvents
from service.ops.metrics import Metrics, Served
from service.ops.metrics_port import MetricsAddressError, MetricsEndpoint, serve_metrics
from service.ops.step_reads import memory_bytes_per_s, step_weight_bytes
from service.parts import PartAbsentError, access, cluster, hang_s, limits, traces, transport
from service.port import EnginePort
from service.rpc.health import HealthServicer
from service.rpc.model import ModelPort, served_model
from service.rpc.probes import ProbePort, build_probe_port
from service.rpc.prompts import PromptRoom
from service.rpc.server import Edge, ListenError, build_server
from service.rpc.servicer import SERVICE_NAME, ChatServicer, EdgeLimits
from service.rpc.tls import TlsError
from service.setting_rules import is_loopback
from service.settings import Settings
from service.worker import Worker, WorkerState

if TYPE_CHECKING:
    from service.ops.cluster import Cluster
    from service.ops.traces import Traces

logger = logging.getLogger("soloist.server")

EXIT_DRAINED = 0
EXIT_CANNOT_START = 1  # model, device or port; one line says which
EXIT_ENGINE_LOST = 3  # after it had started: the device context is gone and never serves again

LOOK_EVERY_S = 0.5
LOAD_ENDS_S = 1.0  # of a load that nobody waits for any more; it looks up only between two tensors

EngineFactory = Callable[[Listener], EnginePort]


class StartError(Exception):
    """The server cannot start. One line for the operator."""


def version() -> str:
    """Of the installed distribution."""
    try:
        return metadata.version("soloist")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def engine_factory(config: EngineConfig) -> EngineFactory:
    """Opens the real engine in the thread that calls it; torch is imported there."""

    def open_engine(listener: Listener) -> EnginePort:
        from engine.engine import Engine

        return cast("EnginePort", Engine.open(config, listener))

    return open_engine


class App:
    """One server. `start`, then `ready`, then `run` to its end; or `signal` from outside.

    Attributes:
        health, metrics, worker: its parts, for those who watch.
        times: how long it may take to leave.
    """

    def __init__(self, settings: Settings, factory: EngineFactory | None = None) -> None:
        self.settings = settings
        self.health = Health()
        self.metrics = Metrics()
        self.health.subscribe(self.metrics.move_readiness)
        self._log_events = LogEvents()
        self.worker = Worker(
            factory or engine_factory(settings.engine),
            limits(settings),
            listener=self._hear_service,
            engine_listener=self._hear_engine,
            on_fatal=self._lose_engine,
        )
        self._load_report = LoadReport(self.worker.load, settings.active_turns)
        self._traces: Traces | None = None
        self._cluster: Cluster | None = None
        self._prompts = PromptRoom(settings.prompt_threads, settings.queue_depth)
        edge_limits = EdgeLimits(settings.queue_depth, settings.active_turns)
        self._chat = ChatServicer(edge_limits, self._prompts, version(), self._hear_service)
        self.times = DrainTimes(settings.propagation_s, settings.grace_s)
        self._drain = Drain(self.times)
        self._stirred = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._edge: Edge | None = None
        self._probes: ProbePort | None = None
        self._endpoint: MetricsEndpoint | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._exit_code = EXIT_DRAINED
        self._hang_s = hang_s(settings, "cpu")

    @property
    def address(self) -> str:
        """The gRPC address as bound, once started."""
        assert self._edge is not None, "the address is known after start()"
        return self._edge.address

    @property
    def metrics_address(self) -> str | None:
        """The metrics endpoint's address as bound, if there is one."""
        return self._endpoint.address if self._endpoint else None

    @property
    def probe_address(self) -> str | None:
        """The address of the port for probes as bound, if there is one."""
        return self._probes.address if self._probes else None

    async def start(self) -> None:
        """Take all ports, serve health, and begin to load. StartError if a port cannot be had."""
        self._loop = asyncio.get_running_loop()
        health = HealthServicer(self.health, (SERVICE_NAME,))
        try:
            self._edge = build_server(
                transport(self.settings),
                access(self.settings),
                self._chat,
                health,
                lambda: ((TRAILER, self._load_report.encoded()),),
            )
            if self.settings.probe_listen is not None:
                self._probes = build_probe_port(self.settings.probe_listen, health)
            self._traces = traces(self.settings, version())
            self._cluster = cluster(self.settings, self._hear_of_node, self.metrics.cluster_asked)
            if self.settings.metrics_listen is not None:
                self._endpoint = serve_metrics(self.metrics, self.settings.metrics_listen)
        except (ListenError, TlsError, KeyFileError, PartAbsentError, MetricsAddressError) as error:
            raise StartError(str(error)) from None
        if self.settings.keys is not None and self.settings.tls_cert is None and not is_loopback(self.settings.listen):
            logger.warning("keys travel in plain text: give --tls-cert and --tls-key, or end TLS before this server")
        await self._edge.server.start()
        if self._probes is not None:
            await self._probes.server.start()
        if self._cluster is not None:
            self._cluster.start()
        self.worker.start()
        fields = {"grpc": self.address, "metrics": self.metrics_address or "off", "version": version()}
        logger.info("listening; the model is loading", extra={"fields": fields})
        self._tasks = [
            asyncio.create_task(self._serve_when_ready(), name="load"),
            asyncio.create_task(self._watch_worker(), name="watch"),
        ]

    async def ready(self) -> None:
        """Returns when turns are served; raises what kept the model from loading, or from being served."""
        await self.worker.ready()
        serving = self._tasks[0]
        await asyncio.wait([serving])
        if not serving.cancelled() and (error := serving.exception()) is not None:
            raise error

    def signal(self) -> None:
        """A wish to leave: the first drains in order, each further one ends the present phase at once."""
        if self._drain.phase is Phase.SERVING:
            self.metrics.drain_began(DrainCause.SIGNAL)
        self._drain.signal(time.monotonic())
        if self.health.state is Readiness.LOADING:  # nobody is served, and balancers know: no phase has a purpose
            while self._drain.phase is not Phase.STOPPED:
                self._drain.signal(time.monotonic())
        self._stirred.set()

    def hand_over(self) -> None:
        """The node goes: drain ahead of the signal, and stop when it comes."""
        if self._drain.phase is Phase.SERVING:
            self.metrics.drain_began(DrainCause.NODE_DISRUPTION)
        self._drain.hand_over(time.monotonic())
        self._stirred.set()

    async def run(self) -> int:
        """Serve until told to leave or the engine is lost, then stop in order. Returns the process's exit code."""
        phase = Phase.SERVING
        while phase is not Phase.STOPPED and self.health.state is not Readiness.ENGINE_LOST:
            self._stirred.clear()
            now_s = time.monotonic()
            reached = self._drain.tick(now_s, idle=self._idle())
            if reached is not phase:
                phase = reached
                self._enter(phase)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._drain.left_s(now_s), LOOK_EVERY_S)):
                    await self._stirred.wait()
        await self._stop()
        return self._exit_code

    async def close(self) -> None:
        """Stop at once, for tests and short-lived servers."""
        self._move_health(Readiness.DRAINING)
        await self._stop()

    def _enter(self, phase: Phase) -> None:
        logger.info("drain", extra={"fields": {"phase": phase.name.lower(), "in_flight": self._in_flight()}})
        if phase >= Phase.PROPAGATING:
            self._move_health(Readiness.DRAINING)
        if phase is Phase.FINISHING:
            self.worker.drain(self.times.grace_s)
        elif phase is Phase.ENDING:
            self.worker.drain(0.0)

    async def _stop(self) -> None:
        """Every wait here is one of DrainTimes, so that the longest drain is known."""
        assert self._edge is not None, "nothing to stop before start()"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The worker first: it tells each turn its end. Then gRPC, whose stop returns before handlers have cleaned up.
        loading = self.worker.state is WorkerState.LOADING
        if await self.worker.stop(LOAD_ENDS_S if loading else self.times.engine_s):
            pass
        elif loading:
            logger.info("the load is given up where it is")
        elif self._exit_code == EXIT_DRAINED:
            logger.error("the engine's thread did not end in time")
            self._exit_code = EXIT_ENGINE_LOST
        await self._edge.calls.wait_ended(self.times.handlers_s, but_watchers=True)
        await self._edge.server.stop(self.times.watchers_s)
        if not await self._edge.calls.wait_ended(self.times.handlers_s):
            logger.error("some handlers did not end in time")
        if self._probes is not None:  # last of the ports: alive until the end
            await self._probes.server.stop(0)
        self._prompts.close()
        closing = []
        if self._traces is not None:
            closing.append(asyncio.to_thread(self._traces.close, self.times.observers_s))
        if self._cluster is not None:
            closing.append(asyncio.to_thread(self._cluster.close, self.times.observers_s))
        if self._endpoint is not None:
            closing.append(asyncio.to_thread(self._endpoint.close))
        await asyncio.gather(*closing)
        logger.info("stopped", extra={"fields": {"exit_code": self._exit_code}})

    async def _serve_when_ready(self) -> None:
        try:
            await self.worker.ready()
        except BaseException:  # the worker's on_fatal has told
            return
        try:
            self._open_to_turns()
        except Exception as error:  # a server that loads for ever would keep its pod and answer nobody
            self._lose_engine(error)
            raise

    def _open_to_turns(self) -> None:
        model = served_model(cast("ModelPort", self.worker.engine))
        self._hang_s = hang_s(self.settings, model.device)
        graphs = str(model.graphs().eager_reason or "on")
        self.metrics.serve_model(
            Served(
                version(),
                model.name,
                model.device,
                model.precision,
                model.decoder,
                model.fingerprint,
                graphs,
                step_weight_bytes(model.architecture, model.precision, model.packed_bytes),
                memory_bytes_per_s(model.device),
            )
        )
        if self._traces is not None:
            self._traces.model = model.name
        self._chat.serve(model, Conversations(self.worker), self.worker.load)
        self.health.loaded()
        if self.health.state is Readiness.LOADING:
            self._move_health(Readiness.SERVING)
        if model.slots < self.settings.engine.slots:
            fewer = {"asked_for": self.settings.engine.slots, "fit": model.slots}
            logger.warning("the device has room for fewer KV slots than asked for", extra={"fields": fewer})
        fields = {
            "model": model.name,
            "device": model.device,
            "precision": model.precision,
            "graphs": f"{model.graphs().captured} captured" if graphs == "on" else f"none: {graphs}",
            "graph_pool_mib": model.graphs().pool_bytes >> 20,
            "kv_slots": model.slots,
            "kv_tokens": model.slots * model.context,
            "kv_mib": model.kv_bytes >> 20,
            "grpc": self.address,
            "metrics": self.metrics_address or "off",
        }
        logger.info("ready", extra={"fields": fields})

    async def _watch_worker(self) -> None:
        """Health follows the engine's thread, not this loop: a dead or hung one is seen here at the latest."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._show_load()
            if self.worker.state in (WorkerState.READY, WorkerState.DRAINING):
                if not self.worker.alive:
                    self.worker.give_up(EngineLostError("the engine's thread died"))
                elif self.worker.heartbeat_age_s > self._hang_s:
                    self.worker.give_up(EngineLostError(f"the engine made no step for {self._hang_s:g} s"))

    def _lose_engine(self, error: BaseException) -> None:
        if self.health.state is Readiness.ENGINE_LOST:
            return
        starting = self.health.state is Readiness.LOADING
        self._exit_code = EXIT_CANNOT_START if starting else EXIT_ENGINE_LOST
        # While loading nobody has said anything yet, so that an error can quote nobody.
        whole = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        fields = {"error": whole if starting else loggable(error)}
        logger.critical("cannot start" if starting else "engine lost", extra={"fields": fields})
        self._move_health(Readiness.ENGINE_LOST)
        self._stirred.set()

    def _move_health(self, to: Readiness) -> None:
        if self.health.state is not Readiness.ENGINE_LOST:
            self.health.move(to)

    def _hear_service(self, event: ServiceEvent) -> None:
        self.metrics.service_event(event)
        if isinstance(event, TokenMade):
            return  # the one event that comes with every token: nothing else hangs on it
        self._log_events.service_event(event)
        self._load_report.service_event(event)
        if self._traces is not None:
            self._traces.service_event(event)
        self._show_load()
        self._stirred.set()

    def _hear_engine(self, event: EngineEvent) -> None:
        self.metrics.engine_event(event)
        self._log_events.engine_event(event)
        if self._cluster is not None:
            self._cluster.engine_event(event)
        if isinstance(event, VerifyMismatch) and self._loop is not None:  # told in the engine's thread
            self._loop.call_soon_threadsafe(self._doubt)

    def _doubt(self) -> None:
        """A replay was not what it should be: eager steps go on, and balancers send new turns elsewhere."""
        if self.health.state in (Readiness.LOADING, Readiness.SERVING):
            self._move_health(Readiness.UNSOUND)

    def _hear_of_node(self) -> None:
        """Told in a thread of the cluster's."""
        assert self._loop is not None, "the cluster is watched after start()"
        with suppress(RuntimeError):  # the loop has ended just now, and with it all that could be handed over
            self._loop.call_soon_threadsafe(self.hand_over)

    def _show_load(self) -> None:
        load = self.worker.load()
        self.metrics.show_load(load)
        if self._cluster is not None:
            self._cluster.show_load(load)

    def _in_flight(self) -> int:
        load: Load = self.worker.load()
        return load.active_turns + load.queued_turns

    def _idle(self) -> bool:
        return self._in_flight() == 0
