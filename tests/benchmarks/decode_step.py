"""Measure one decode step of the fused kernels in one CUDA graph, beside the read bandwidth of the same run.

    python -m tests.benchmarks.decode_step [--shapes llama-3.1-8b ...] [--tune SECONDS] [--json PATH]

Random weights, greedy, 32 tokens of context, 128 steps; and the last 128 steps up to 4096 for llama-3.1-8b. Prints
tokens/s, share of the read bandwidth, kernels a step and each kernel's time when many of it stand in one graph. With
--tune, settings are searched in the step itself and the best table is printed. The last line is JSON.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton

from engine.architecture import Architecture
from engine.bench.bandwidth import measure_read_bandwidth
from engine.bench.candidates import KERNELS, attend_candidates, matrix_of, row_candidates, staying
from engine.bench.tune import search
from engine.kernels.fused import FusedOps
from engine.kernels.ops import DecoderWeights, LayerCache, LayerWeights, Linear, SlotTable
from engine.kernels.plain import PlainOps
from engine.kernels.tuning import Kernel, Tuning, tuning_for
from tests.benchmarks.shapes import SHAPES, bytes_per_token

BF16 = torch.bfloat16
CONTEXT, STEPS, LONG = 32, 128, 4096
LONG_SHAPE = "llama-3.1-8b"


def timed(play: Callable[[], None], repeats: int, rounds: int = 3) -> float:
    """Median seconds of one `play` over some rounds of `repeats`, by events."""
    play()
    took = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            play()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / repeats * 1e-3)
    return float(statistics.median(took))


def captured(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """`body` as a graph; it has run once before."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


class Bench:
    """A decoder with random weights, its buffers, and its step."""

    def __init__(
        self, a: Architecture, device: torch.device, dtype: torch.dtype = BF16, tuning: Tuning | None = None
    ) -> None:
        self.a, self.device, self.dtype = a, device, dtype
        generator = None if device.type == "meta" else torch.Generator(device).manual_seed(0)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            empty = torch.empty(rows, columns, dtype=dtype, device=device)
            return empty if generator is None else empty.normal_(std=columns**-0.5, generator=generator)

        def ones(size: int) -> torch.Tensor:
            return torch.ones(size, dtype=dtype, device=device)

        embedding = matrix(a.vocabulary, a.width)
        half = a.head_dim // 2
        angles = torch.outer(torch.arange(a.context).float(), a.rope_base ** (-torch.arange(half).float() / half))
        self.weights = DecoderWeights(
            embedding=embedding,
            layers=tuple(
                LayerWeights(
                    qkv=Linear(matrix(a.qkv_rows, a.width), ones(a.qkv_rows) if a.qkv_bias else None),
                    q_norm=ones(a.head_dim) if a.qk_norm else None,
                    k_norm=ones(a.head_dim) if a.qk_norm else None,
                    out=Linear(matrix(a.width, a.heads * a.head_dim)),
                    gate_up=Linear(matrix(2 * a.ffn_width, a.width)),
                    down=Linear(matrix(a.width, a.ffn_width)),
                )
                for _ in range(a.layers)
            ),
            final_norm=ones(a.width) if a.tied_head else None,
            head=embedding if a.tied_head else matrix(a.vocabulary, a.width),
            rope_cos=angles.cos().to(device),
            rope_sin=angles.sin().to(device),
        )
        rows = a.kv_heads * a.context
        self.cache = tuple(
            LayerCache(
                *(matrix(rows, a.head_dim).mul_(a.head_dim**0.5).view(1, a.kv_heads, a.context, -1) for _ in range(2))
            )
            for _ in range(a.layers)
        )
        self.table = SlotTable(
            active=torch.zeros(1, dtype=torch.int64, device=device),
            token=torch.ones(1, dtype=torch.int64, device=device),
            position=torch.zeros(1, dtype=torch.int64, device=device),
            stopped=torch.zeros(1, dtype=torch.bool, device=device),
        )
        self.stop_ids = torch.full((1, 33), -1, dtype=torch.int64, device=device)
        self.picked = torch.zeros(1, dtype=torch.int64, device=device)
        self.set_rows(1)
        self.set_tuning(tuning)

    def set_rows(self, rows: int) -> None:
        """Buffers for steps of so many rows."""
        a = self.a

        def buffer(columns: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
            return torch.full((rows, columns), float("nan"), dtype=dtype, device=self.device)

        self.x, self.logits = buffer(a.width, torch.float32), buffer(a.vocabulary, torch.float32)
        self.qkv, self.mixed = buffer(a.qkv_rows), buffer(a.heads * a.head_dim)
        self.hidden = buffer(a.ffn_width)

    def set_tuning(self, tuning: Tuning | None) -> None:
        """Take other settings."""
        self.ops = FusedOps(self.a, self.dtype, self.device, tuning)

    def layers(self, ops: FusedOps | PlainOps, bucket: int) -> None:
        """Everything up to the head."""
        eps = self.a.norm_eps
        for layer, cache in zip(self.weights.layers, self.cache, strict=True):
            ops.norm_linear(self.x, layer.qkv, eps, self.qkv)
            ops.attend(self.qkv, layer, self.weights, cache, self.table, bucket, eps, self.mixed)
            ops.linear_residual(self.mixed, layer.out, self.x)
            ops.norm_gate_up(self.x, layer.gate_up, eps, self.hidden)
            ops.linear_residual(self.hidden, layer.down, self.x)

    def pick(self) -> None:
        """Head, choice, next embedding."""
        self.ops.greedy_head_and_pick(
            self.x, self.weights, self.a.norm_eps, self.logits, self.table, self.stop_ids, self.picked
        )

    def step(self, bucket: int) -> None:
        """One greedy step."""
        self.layers(self.ops, bucket)
        self.pick()

    def start(self, position: int) -> None:
        """Before the first step at `position`."""
        self.table.position.fill_(position)
        self.table.token.fill_(1)
        self.ops.embed(self.weights.embedding, self.table, self.x)

    def seconds_per_step(self, position: int, bucket: int, steps: int = STEPS, rounds: int = 3) -> float:
        """Median over rounds of `steps` replays that begin at `position`."""
        self.start(position)
        graph = captured(lambda: self.step(bucket))
        took = []
        for _ in range(rounds + 1):
            self.start(position)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(steps):
                graph.replay()
            end.record()
            end.synchronize()
            took.append(start.elapsed_time(end) / steps * 1e-3)
        return float(statistics.median(took[1:]))

    def kernel_seconds(self) -> dict[str, float]:
        """Seconds of each kernel when one of every layer stands in one graph, at the position of the slot."""
        eps, ops, w = self.a.norm_eps, self.ops, self.weights
        self.start(96)
        pairs = list(zip(w.layers, self.cache, strict=True))

        def times(body: Callable[[LayerWeights, LayerCache], None]) -> float:
            def all_layers() -> None:
                for layer, cache in pairs:
                    body(layer, cache)

            graph = captured(all_layers)
            return timed(graph.replay, 20) / len(pairs)

        def attend(bucket: int) -> float:
            return times(
                lambda layer, cache: ops.attend(self.qkv, layer, w, cache, self.table, bucket, eps, self.mixed)
            )

        self.layers(ops, 256)  # real values in every buffer
        result = {
            "qkv": times(lambda layer, cache: ops.norm_linear(self.x, layer.qkv, eps, self.qkv)),
            "attend at 97": attend(256),
            "out": times(lambda layer, cache: ops.linear_residual(self.mixed, layer.out, self.x)),
            "gate_up": times(lambda layer, cache: ops.norm_gate_up(self.x, layer.gate_up, eps, self.hidden)),
            "down": times(lambda layer, cache: ops.linear_residual(self.hidden, layer.down, self.x)),
        }
        self.table.position.fill_(4000)
        result["attend at 4001"] = attend(LONG)
        self.start(96)
        graph = captured(self.pick)
        result["head and pick"] = timed(graph.replay, 20)
        return result


def check(name: str, a: Architecture, device: torch.device, widths: list[int]) -> list[str]:
    """Two layers of the shape: error against float32, and each row's bits against the row alone. Faults, in words."""
    a = replace(a, layers=2, vocabulary=8192 + 24)
    bench = Bench(a, device)
    wide = Bench(a, device, torch.float32)
    faults = []
    for cache, held in zip(wide.cache, bench.cache, strict=True):
        cache.k.copy_(held.k)
        cache.v.copy_(held.v)
    upcast(bench.weights, wide.weights)
    for position, bucket in ((0, 256), (33, 256), (255, 512), (300, 512), (1500, 2048), (4095, LONG)):
        for each in (bench, wide):
            each.table.position.fill_(position)
        ids = torch.randint(0, a.vocabulary, (1,), device=device)
        x = bench.weights.embedding[ids].float() * a.width**0.5
        logits = {}
        for label, b, ops in (
            ("fused", bench, bench.ops), ("plain", bench, PlainOps(device)), ("float32", wide, PlainOps(device))
        ):  # fmt: skip
            b.x.copy_(x)
            b.logits.fill_(float("nan"))
            bench.ops.adopt(bench.x)
            b.layers(ops, bucket)
            ops.head(b.x, b.weights, a.norm_eps, b.logits)
            logits[label] = b.logits.clone()
        reference = logits["float32"].norm()
        errors = {label: float((logits[label] - logits["float32"]).norm() / reference) for label in ("fused", "plain")}
        if not errors["fused"] <= 1.1 * errors["plain"] + 1e-4:
            faults.append(f"{name} at {position}: error {errors['fused']:.2e}, plain {errors['plain']:.2e}")
        if position == 300:
            print(f"  {name} at 300: error fused {errors['fused']:.2e}, plain {errors['plain']:.2e}", flush=True)
    for rows, position in itertools.product(widths, (250, 1019)):
        if not same_bits(bench, rows, position):
            faults.append(f"{name}: rows {rows} at {position} have other bits than alone")
    return faults


def upcast(source: DecoderWeights, target: DecoderWeights) -> None:
    """Copy every weight into the float32 twin."""
    for a, b in zip(source.layers, target.layers, strict=True):
        for field in ("qkv", "out", "gate_up", "down"):
            getattr(b, field).weight.copy_(getattr(a, field).weight)
    target.embedding.copy_(source.embedding)
    target.head.copy_(source.head)


def same_bits(bench: Bench, rows: int, position: int) -> bool:
    """Whether each row of a step of several has the bits of a step of its own."""
    a, device = bench.a, bench.device
    x = torch.randn(rows, a.width, device=device)
    kept = [(c.k.clone(), c.v.clone()) for c in bench.cache]
    bench.set_rows(rows)
    bench.table.position.fill_(position)
    bench.x.copy_(x)
    bench.layers(bench.ops, 2048)
    bench.ops.head(bench.x, bench.weights, a.norm_eps, bench.logits)
    together = bench.logits.clone()
    for cache, (k, v) in zip(bench.cache, kept, strict=True):
        cache.k.copy_(k)
        cache.v.copy_(v)
    bench.set_rows(1)
    same = True
    for row in range(rows):
        bench.table.position.fill_(position + row)
        bench.x.copy_(x[row : row + 1])
        bench.ops.adopt(bench.x)
        bench.layers(bench.ops, 2048 if row % 2 else LONG)
        bench.ops.head(bench.x, bench.weights, a.norm_eps, bench.logits)
        same = same and torch.equal(bench.logits[0], together[row])
    return same


def _compile(a: Architecture, kernel: Kernel | int, tuning: Tuning) -> None:
    """In a process of its own: put one kernel, or the attention of a bucket, into Triton's cache on disk."""
    from triton.runtime.jit import JITFunction

    from engine.kernels.launch import Launch

    JITFunction.__getitem__ = lambda self, grid: (
        lambda *args, **kwargs: self.run(*args, grid=grid, warmup=True, **kwargs)
    )
    launch = Launch.on(torch.device("cuda"))
    Launch.on = classmethod(lambda cls, device: launch)  # type: ignore[method-assign, assignment]
    bench = Bench(replace(a, layers=1), torch.device("meta"), tuning=tuning)
    layer, eps = bench.weights.layers[0], a.norm_eps
    bench.ops._follow(bench.x)
    if kernel == "qkv":
        bench.ops.norm_linear(bench.x, layer.qkv, eps, bench.qkv)
    elif kernel == "out":
        bench.ops.linear_residual(bench.mixed, layer.out, bench.x)
    elif kernel == "gate_up":
        bench.ops.norm_gate_up(bench.x, layer.gate_up, eps, bench.hidden)
    elif kernel == "down":
        bench.ops.linear_residual(bench.hidden, layer.down, bench.x)
    elif kernel == "head":
        bench.pick()
    else:
        bench.ops.attend(bench.qkv, layer, bench.weights, bench.cache[0], bench.table, kernel, eps, bench.mixed)


def precompile(shapes: list[str], base: Tuning, pool: ProcessPoolExecutor) -> list[Future[None]]:
    """Compile the candidates beside the measuring process."""
    work: list[tuple[Architecture, Kernel | int, Tuning]] = []
    for name in shapes:
        a = SHAPES[name]
        heads = (a.heads, a.kv_heads, a.head_dim)
        for bucket in (256, LONG) if name == LONG_SHAPE else (256,):
            settings = attend_candidates(base.attend_setting(*heads), long=bucket == LONG)
            work += [(a, bucket, replace(base, attend={heads: setting})) for setting in settings]
    for name, kernel in itertools.product(shapes, KERNELS):
        key = (kernel, *matrix_of(SHAPES[name], kernel))
        found = row_candidates(*key) + staying(base.row_setting(*key))
        work += [(SHAPES[name], kernel, replace(base, rows={key: setting})) for setting in found]
    return [pool.submit(_compile, *each) for each in work]


def tune(
    name: str, a: Architecture, device: torch.device, deadline: float, tuning: Tuning | None, *, long: bool
) -> Tuning:
    """The best settings found in the step until the deadline; large shapes are tuned on 8 layers."""
    bucket, position = (LONG, LONG - STEPS) if long else (256, CONTEXT)
    layers = a.layers if a.width < 2000 else 8
    bench = Bench(replace(a, layers=layers), device, tuning=tuning)
    steps = 40 if a.width >= 3000 else 100
    first = bench.ops.tuning

    def seconds(candidate: Tuning) -> float:
        bench.set_tuning(candidate)
        return bench.seconds_per_step(position, bucket, steps)

    best, tried, _ = search(a, first, seconds, deadline, long=long)
    for kernel, group in itertools.groupby(tried, key=lambda each: each.kernel):
        fastest = sorted((each.seconds, each.label) for each in group if each.seconds is not None)[:6]
        print(f"    {name} {kernel}: " + "; ".join(f"{label} {s * 1e6:.0f}" for s, label in fastest), flush=True)
    before, after = seconds(first), seconds(best)
    print(f"  {name}: {before * 1e6:.1f} -> {after * 1e6:.1f} us over {layers} layers", flush=True)
    return best


def measure(name: str, a: Architecture, device: torch.device, ceiling: float, tuning: Tuning | None) -> dict[str, Any]:
    """One shape's figures, printed as they come."""
    bench = Bench(a, device, tuning=tuning)
    figures: dict[str, Any] = {}
    cases = [("", CONTEXT, 256)]
    if name == LONG_SHAPE:
        cases.append((" at 4k", LONG - STEPS, LONG))
    for suffix, position, bucket in cases:
        seconds = bench.seconds_per_step(position, bucket)
        read = bytes_per_token(a) + (
            0 if not suffix else 2 * 2 * a.layers * a.kv_heads * a.head_dim * (LONG - STEPS // 2)
        )
        share = read / seconds / ceiling
        print(f"  {name}{suffix}: {1 / seconds:.1f} tok/s, {seconds * 1e6:.0f} us, {share:.1%} of reads", flush=True)
        figures[f"tokens_per_s{suffix}"] = round(1 / seconds, 1)
        figures[f"share{suffix}"] = round(share, 4)
    kernels = bench.kernel_seconds()
    figures["kernels_us"] = {key: round(value * 1e6, 2) for key, value in kernels.items()}
    print("   ", figures["kernels_us"], flush=True)
    graph = captured(lambda: bench.step(256))
    bench.start(CONTEXT)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        graph.replay()
    figures["cpu_us_per_replay"] = round((time.perf_counter() - began) / 20 * 1e6, 1)
    torch.cuda.synchronize()
    bench.start(CONTEXT)
    figures["eager_us"] = round(timed(lambda: bench.step(256), 5) * 1e6, 1)
    figures["kernels_per_step"] = a.layers * (7 if a.width in bench.ops.tuning.norm_apart else 5) + 3
    return figures


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS", help="search settings for so long")
    parser.add_argument("--check", nargs="*", default=list(SHAPES), choices=list(SHAPES), help="shapes to check")
    parser.add_argument("--rows", nargs="*", type=int, default=[2, 4, 8], help="rows whose bits are checked")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda")
    began = time.monotonic()
    context = get_context("spawn")
    result: dict[str, Any] = {}
    with ProcessPoolExecutor(12, mp_context=context) as pool:
        waiting = precompile(options.shapes, tuning_for(torch.cuda.get_device_name()), pool) if options.tune else []
        ceiling = measure_read_bandwidth(device).bytes_per_s
        name = torch.cuda.get_device_name()
        print(f"{name}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
        print(f"read {ceiling / 1e9:.0f} GB/s", flush=True)
        result["device"], result["read_gb_per_s"] = name, round(ceiling / 1e9, 1)
        for shape in options.shapes:
            result[shape] = measure(shape, SHAPES[shape], device, ceiling, None)
            write(options.json, result)
        print(f"measured after {time.monotonic() - began:.0f} s", flush=True)
        faults = [fault for shape in options.check for fault in check(shape, SHAPES[shape], device, options.rows)]
        print("\n".join(faults) or "every check passed", flush=True)
        result["faults"] = faults
        print(f"checked after {time.monotonic() - began:.0f} s", flush=True)
        for index, shape in enumerate(options.shapes if options.tune else []):
            left = began + options.tune - time.monotonic()
            deadline = time.monotonic() + max(0.0, left / (len(options.shapes) - index) - 5.0)
            failed = [f.exception() for f in waiting if f.done() and f.exception()]
            done = sum(f.done() for f in waiting)
            print(f"  compiled {done} of {len(waiting)}, {len(failed)} failed {failed[:1]}", flush=True)
            tuning = None
            if shape == LONG_SHAPE:
                tuning = tune(shape, SHAPES[shape], device, deadline, tuning, long=True)
            tuning = tune(shape, SHAPES[shape], device, deadline, tuning, long=False)
            result[f"{shape} tuned"] = measure(shape, SHAPES[shape], device, ceiling, tuning)
            result[f"{shape} table"] = repr(tuning)
            print(f"  {tuning}", flush=True)
            write(options.json, result)
        pool.shutdown(cancel_futures=True)
    print(json.dumps({key: value for key, value in result.items() if "table" not in key}))


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Keep what there is so far."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
