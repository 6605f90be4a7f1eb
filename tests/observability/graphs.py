"""The metrics page of a pod with a GPU, without a GPU: real metrics, told what an engine with graphs would tell."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from engine.bench.shapes import SHAPES
from engine.events import CaptureCause, CaptureOutcome, EagerReason, GraphCaptured, PrefillDone, Progress, StepDone
from service.events import Load
from service.ops.health import Readiness
from service.ops.metrics import Metrics, Served
from service.ops.metrics_port import serve_metrics
from service.ops.step_reads import memory_bytes_per_s, step_weight_bytes

DEVICE = "NVIDIA H200"
STEP_S = 0.0036  # of 7 billion parameters in half precision: three quarters of the bandwidth
GRAPHS = ("b256_r1_greedy", "b512_r1_greedy", "b256_r1_sampled")
CAPTURE_S = 0.12
POOL_BYTES = 300 << 20
_TELL_EVERY_S = 0.1


@contextlib.contextmanager
def pod_with_graphs() -> Iterator[str]:
    """Plays steps by replays, one in a hundred eagerly, until the end. HOST:PORT of its page."""
    metrics = Metrics()
    weights = step_weight_bytes(SHAPES["llama-2-7b"], "bfloat16", None)
    served = Served("0", "seven", DEVICE, "bfloat16", "native", "f", "on", weights, memory_bytes_per_s(DEVICE))
    metrics.engine_event(Progress("load", 10, 10, "bytes"))
    for graph in GRAPHS:
        captured = (CaptureCause.START, CaptureOutcome.CAPTURED, CAPTURE_S, POOL_BYTES)
        metrics.engine_event(GraphCaptured(graph, *captured))
    metrics.serve_model(served)
    metrics.move_readiness(Readiness.SERVING)
    metrics.show_load(Load(0, 1, 0.0, STEP_S, 3000, 8192, False))
    stop = threading.Event()
    thread = threading.Thread(target=_play, args=(metrics, stop), name="steps")
    endpoint = serve_metrics(metrics, "127.0.0.1:0")
    thread.start()
    try:
        yield endpoint.address
    finally:
        stop.set()
        thread.join()
        endpoint.close()


def _play(metrics: Metrics, stop: threading.Event) -> None:
    step = 0
    while not stop.wait(_TELL_EVERY_S):
        metrics.engine_event(PrefillDone(512, 0.02, "prefill_r512"))
        for _ in range(20):
            step += 1
            if step % 100:
                metrics.engine_event(StepDone(GRAPHS[step % len(GRAPHS)], None, STEP_S))
            else:
                metrics.engine_event(StepDone(None, EagerReason.UNSUPPORTED_REQUEST, 3 * STEP_S))
