"""How an engine is set up: one frozen object, each default written here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]
Kernels = Literal["auto", "plain", "fused", "quantised"]
Graphs = Literal["on", "off", "strict"]
GraphStages = Literal["greedy", "sampled", "truncated", "logprobs"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Attributes:
    model: a GGUF file, a folder in Hugging Face layout, a hub id, `s3://BUCKET/PREFIX`, or `embedded`
        (SmolLM2-135M-Instruct).
    device: `auto` takes CUDA where there is one.
    precision: `auto` is float32 on the CPU and bfloat16 on CUDA.
    context: tokens a session may hold; None takes the model's own length, at most 8192.
    slots: sessions whose KV cache stays on the device.
    kernels: `auto` takes the fused ones on CUDA in half precision, the quantised ones on the CPU where the file's
        matrices are of types that those play (Q4_0, Q4_1, Q8_0) and the precision is float32, plain torch elsewhere.
    graphs: `strict` refuses to start without every graph.
    graph_context: longest context that graphs are captured for, tokens; None is the whole context.
    graph_stages: sampler stages that graphs are captured for; a turn that needs another runs eagerly.
    verify_every: every Nth replayed step is also run eagerly and compared; 0 is off.
    prefill_chunk: prompt tokens prefilled at once; others may speak between two chunks.
    threads: CPU threads; None takes the cgroup's quota.
    sha256: refuse a model file whose digest differs; None does not check.
    s3_endpoint: address of an S3-compatible server; None is what the AWS settings say.
    model_cache: folder that models in buckets are downloaded to; None streams them to the device.
    stream_buffer_bytes: host memory that such a stream may fill; a single tensor may need more.
    """

    model: str = "embedded"
    device: Device = "auto"
    precision: Precision = "auto"
    context: int | None = None
    slots: int = 4
    kernels: Kernels = "auto"
    graphs: Graphs = "on"
    graph_context: int | None = None
    graph_stages: tuple[GraphStages, ...] = ("greedy", "sampled", "truncated", "logprobs")
    verify_every: int = 0
    prefill_chunk: int = 512
    threads: int | None = None
    sha256: str | None = None
    s3_endpoint: str | None = None
    model_cache: str | None = None
    stream_buffer_bytes: int = 2 << 30
