"""How fast one GPU plays a model: the share of the memory's bandwidth that was measured, times another GPU's bandwidth.

Measured means tests/benchmarks/RESULTS.md: one NVIDIA H200, bf16, batch 1, short context. Every other GPU is derived
from that and its data sheet, and says so.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from service.cli.cost.prices import Gpu

# The data sheet of the GPU that was measured. Shares below are of this figure, as only data sheets are at hand for the
# others; of the bandwidth that a plain reader reached in the same run they are larger (88% in place of 82% for 8B).
MEASURED_GPU = Gpu("H200", memory_gb=141, bandwidth_gb_s=4800, bf16_tflops=989)

# A prompt of 2,048 tokens on Llama-3.1-8B: 58.5 ms.
_PROMPT_TOKENS_PER_S = 2048 / 0.0585
_PROMPT_PARAMETERS = 7_504_658_432  # in all matrices that a token passes

# Memory beside the weights: keys and values, the graphs' pool, CUDA itself.
_FREE_GB = 3.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured model: bytes of bf16 weights that a token reads, and tokens a second on `MEASURED_GPU`."""

    bytes_per_token: float
    tokens_per_s: float

    @property
    def share(self) -> float:
        """Of the data sheet's bandwidth."""
        return self.bytes_per_token * self.tokens_per_s / (MEASURED_GPU.bandwidth_gb_s * 1e9)


# Smallest first.
MEASURED = {
    "smollm2-135m": Measured(bytes_per_token=268_959_744, tokens_per_s=3256.9),
    "llama-3.2-1b": Measured(bytes_per_token=2_471_493_632, tokens_per_s=1370.5),
    "llama-2-7b": Measured(bytes_per_token=13_214_154_752, tokens_per_s=299.0),
    "llama-3.1-8b": Measured(bytes_per_token=15_009_316_864, tokens_per_s=263.1),
}

# The embedded model on two cores that others used too (median), and what a prompt's token costs in decode steps there.
CPU_VCPUS, CPU_MEMORY_GB = 2, 4
CPU_TOKENS_PER_S = 30.7
_CPU_STEPS_PER_PROMPT_TOKEN = 0.152


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of one device that plays for one listener: of an answer, and of a prompt."""

    answer: float
    prompt: float

    def busy_s(self, prompt_tokens: float, answer_tokens: float) -> float:
        """Seconds that one answer keeps the device busy."""
        # However short, a prompt reads the weights once, like a token of the answer.
        prefill = max(prompt_tokens / self.prompt, 1 / self.answer) if prompt_tokens else 0.0
        return prefill + answer_tokens / self.answer


def share_for(bytes_per_token: float) -> float:
    """Share of the data sheet's bandwidth for a model of this size: between measured sizes by the size's logarithm.

    Small models reach less: their steps wait for kernels, not for bytes.
    """
    known = list(MEASURED.values())
    if bytes_per_token <= known[0].bytes_per_token:
        return known[0].share
    for small, large in itertools.pairwise(known):
        if bytes_per_token <= large.bytes_per_token:
            span = math.log(large.bytes_per_token / small.bytes_per_token)
            along = math.log(bytes_per_token / small.bytes_per_token) / span
            return small.share + along * (large.share - small.share)
    return known[-1].share


def gpu_speed(gpu: Gpu, bytes_per_token: float, answer_tokens_per_s: float | None = None) -> Speed:
    """What is derived for `gpu`; where the user measured `answer_tokens_per_s`, only the prompt's speed is derived."""
    answer = answer_tokens_per_s or share_for(bytes_per_token) * gpu.bandwidth_gb_s * 1e9 / bytes_per_token
    parameters = bytes_per_token / 2
    operations = _PROMPT_TOKENS_PER_S * gpu.bf16_tflops / MEASURED_GPU.bf16_tflops
    return Speed(answer, operations * _PROMPT_PARAMETERS / parameters)


def cpu_speed() -> Speed:
    """The embedded model on `CPU_VCPUS` virtual CPUs."""
    return Speed(CPU_TOKENS_PER_S, CPU_TOKENS_PER_S / _CPU_STEPS_PER_PROMPT_TOKEN)


def fits(gpu: Gpu, bytes_per_token: float) -> bool:
    """Whether weights of this size leave room to serve."""
    return bytes_per_token / 1e9 + _FREE_GB <= gpu.memory_gb
