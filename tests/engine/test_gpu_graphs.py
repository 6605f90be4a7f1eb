"""On a CUDA device: graph and eager are one, pools are exact, failures leave a working engine."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams
from engine.errors import GraphError
from engine.events import (
    CaptureCause,
    CaptureOutcome,
    EagerReason,
    EngineEvent,
    GraphCaptured,
    StepDone,
    VerifyMismatch,
)
from engine.known import KnownRows
from engine.model import Decoder
from engine.outputs import Token
from engine.prefill import ChunkPrefill
from engine.shapes import ChunkShape, KnownShape, StepShape, buckets, chunk_shapes
from tests.checkpoints import Sizes, write_tiny_folder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CONTEXT = 1100  # buckets 256, 512, 1024, 1100
CHUNKS = chunk_shapes(EngineConfig().prefill_chunk)
WIDTHS = 3  # steps of 2, 4 and 8 known ids, with the fused kernels
CONFIGURED = (4 + WIDTHS) * len(buckets(CONTEXT)) + len(CHUNKS)
FAMILIES = ("llama", "qwen3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: write_tiny_folder(root / family, family, sizes=Sizes(context=CONTEXT)) for family in FAMILIES}


class Heard:
    """Counts what an engine says."""

    def __init__(self) -> None:
        self.replays = 0
        self.eager: Counter[EagerReason] = Counter()
        self.captures: Counter[CaptureOutcome] = Counter()
        self.mismatches: list[VerifyMismatch] = []

    def __call__(self, event: EngineEvent) -> None:
        match event:
            case StepDone(eager=None):
                self.replays += 1
            case StepDone(eager=EagerReason() as reason):
                self.eager[reason] += 1
            case GraphCaptured(outcome=outcome):
                self.captures[outcome] += 1
            case VerifyMismatch():
                self.mismatches.append(event)
            case _:
                pass

    @property
    def steps(self) -> int:
        """Decode steps after readiness."""
        return self.replays + sum(count for reason, count in self.eager.items() if reason != "warming_up")


def opened(folder: Path, heard: Heard, **options: object) -> Engine:
    return Engine.open(EngineConfig(**{"model": str(folder), "device": "cuda", **options}), heard)  # type: ignore[arg-type]


def ids_of(engine: Engine, prompt: list[int], params: SamplingParams) -> list[int]:
    context = engine.open_context()
    try:
        with closing(engine.generate(context, prompt, params)) as turn:
            return [step.token_id for step in turn if isinstance(step, Token)]
    finally:
        context.close()


def never_ending(**options: object) -> SamplingParams:
    """A turn that no end token stops."""
    return SamplingParams(**{"logit_bias": dict.fromkeys(range(8), -100.0), **options})  # type: ignore[arg-type]


PROMPT = [11, 17, 29, 31, 40]
TURNS = {
    "greedy": never_ending(max_tokens=1050),
    "truncated": never_ending(max_tokens=1050, temperature=1.1, top_p=0.9, top_k=50, min_p=0.01, seed=2**63 + 5),
    "penalised": never_ending(max_tokens=1050, temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, seed=1),
}


@pytest.mark.parametrize(("family", "precision"), [("llama", "bfloat16"), ("qwen3", "bfloat16"), ("llama", "float32")])
def test_graph_and_eager_give_the_same_ids_across_every_bucket_edge(
    folders: dict[str, Path], family: str, precision: str
) -> None:
    replayed, eager = Heard(), Heard()
    with_graphs = opened(folders[family], replayed, precision=precision)
    expected = {name: ids_of(with_graphs, PROMPT, params) for name, params in TURNS.items()}
    with_graphs.close()
    without = opened(folders[family], eager, precision=precision, graphs="off")
    got = {name: ids_of(without, PROMPT, params) for name, params in TURNS.items()}
    without.close()
    assert got == expected
    assert all(len(ids) == 1050 for ids in expected.values())
    assert len(set(map(tuple, expected.values()))) == len(TURNS)
    assert set(replayed.eager) == {EagerReason.WARMING_UP}, "steady state has no eager step"
    assert replayed.replays == eager.eager[EagerReason.DISABLED] == 1050 * len(TURNS)


def test_cug_02_device_side_state_is_read_by_each_replay(folders: dict[str, Path]) -> None:
    """Lengths, positions, slots and parameters change between replays of the same graph, and are seen."""
    engine = opened(folders["llama"], Heard())
    alone = {
        seed: ids_of(engine, [*PROMPT, seed], never_ending(max_tokens=40, temperature=1.0, seed=seed))
        for seed in range(8, 12)
    }
    contexts = {seed: engine.open_context() for seed in alone}
    turns = {
        seed: engine.generate(context, [*PROMPT, seed], never_ending(max_tokens=40, temperature=1.0, seed=seed))
        for seed, context in contexts.items()
    }
    together: dict[int, list[int]] = {seed: [] for seed in alone}
    order = random.Random(3)
    while turns:
        seed = order.choice(list(turns))
        step = next(turns[seed], None)
        if step is None:
            del turns[seed]
        elif isinstance(step, Token):
            together[seed].append(step.token_id)
    assert together == alone
    engine.close()


def test_cug_03_seeds_with_graphs_on(folders: dict[str, Path]) -> None:
    engine = opened(folders["llama"], Heard())
    turn = {
        seed: [ids_of(engine, PROMPT, never_ending(max_tokens=60, temperature=1.0, seed=seed)) for _ in range(2)]
        for seed in (1, 2)
    }
    assert turn[1][0] == turn[1][1]
    assert turn[2][0] == turn[2][1]
    assert turn[1][0] != turn[2][0]
    engine.close()


def test_cug_04_capture_survives_another_threads_cuda_calls(folders: dict[str, Path]) -> None:
    done = threading.Event()
    failures: list[BaseException] = []

    def copy() -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                host = torch.zeros(1 << 16).pin_memory()
                while not done.is_set():
                    torch.empty(1 << 16, device="cuda").copy_(host, non_blocking=True)
                    stream.synchronize()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    heard = Heard()
    try:
        engine = opened(folders["llama"], heard)
    finally:
        done.set()
        thread.join()
    assert not failures
    assert heard.captures == {CaptureOutcome.CAPTURED: CONFIGURED}
    engine.close()


@pytest.fixture
def failing_capture(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Steps fail while they are captured, in the way that the parameter names."""
    honest_step, honest_chunk, honest_rows = Decoder.step, ChunkPrefill.run, KnownRows.run

    def fail() -> None:
        if torch.cuda.is_current_stream_capturing():
            if request.param == "python":
                raise RuntimeError("forced")
            if request.param == "illegal":
                torch.cuda.current_stream().synchronize()
            raise torch.OutOfMemoryError("forced")

    def step(self: Decoder, shape: StepShape) -> None:
        honest_step(self, shape)
        fail()

    def run(self: ChunkPrefill, shape: ChunkShape) -> None:
        honest_chunk(self, shape)
        fail()

    monkeypatch.setattr(Decoder, "step", step)

    def run_rows(self: KnownRows, shape: KnownShape) -> None:
        honest_rows(self, shape)
        fail()

    monkeypatch.setattr(ChunkPrefill, "run", run)
    monkeypatch.setattr(KnownRows, "run", run_rows)


@pytest.mark.parametrize(
    ("failing_capture", "reason"),
    [
        ("python", EagerReason.CAPTURE_FAILED),
        ("illegal", EagerReason.CAPTURE_FAILED),
        ("memory", EagerReason.OUT_OF_MEMORY),
    ],
    indirect=["failing_capture"],
)
@pytest.mark.usefixtures("failing_capture")
def test_cug_05_a_failed_capture_leaves_right_tokens_an_exact_count_and_no_memory(
    folders: dict[str, Path], reason: EagerReason
) -> None:
    quiet = Heard()
    without = opened(folders["llama"], quiet, graphs="off")
    expected = ids_of(without, PROMPT, never_ending(max_tokens=1000))
    without.close()
    del without
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    heard = Heard()
    engine = opened(folders["llama"], heard)
    assert engine.graphs.captured == 0
    assert engine.graphs.eager_reason == reason
    assert ids_of(engine, PROMPT, never_ending(max_tokens=1000)) == expected
    assert heard.eager[reason] == 1000
    assert heard.replays == 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved() - before
    engine.close()
    # Weights, cache and buffers only: what the same engine holds when it never tried to capture.
    plain = opened(folders["llama"], Heard(), graphs="off")
    torch.cuda.empty_cache()
    assert held <= torch.cuda.memory_reserved() - before + (2 << 20)
    plain.close()


@pytest.mark.parametrize("failing_capture", ["python"], indirect=True)
@pytest.mark.usefixtures("failing_capture")
def test_strict_graphs_refuse_to_start_without_them(folders: dict[str, Path]) -> None:
    with pytest.raises(GraphError, match=r"0 of \d+ were captured \(capture_failed\)"):
        opened(folders["llama"], Heard(), graphs="strict")


def test_cug_07_all_graphs_take_little_more_memory_than_the_largest(folders: dict[str, Path]) -> None:
    engine = opened(folders["llama"], Heard())
    everything = engine.graphs.pool_bytes
    stepper = engine._stepper
    alone = []
    for shape in tuple(stepper._shapes):
        stepper.drop_graphs()
        stepper._shapes = [shape]
        with torch.inference_mode():
            stepper.capture(CaptureCause.START)
        assert engine.graphs.captured == 1
        alone.append(engine.graphs.pool_bytes)
    engine.close()
    print(f"{len(alone)} graphs together {everything / 2**20:.1f} MiB, the largest alone {max(alone) / 2**20:.1f} MiB")
    assert 0 < everything <= 1.3 * max(alone)


def test_promise_05_replays_and_eager_steps_add_up_exactly(folders: dict[str, Path]) -> None:
    """50 scripted runs: configured shapes are captured, and every decode step is counted once, with its reason."""
    script = random.Random(50)
    heard = Heard()
    engine = opened(folders["qwen3"], heard, graph_context=512, graph_stages=("greedy", "sampled"), context=CONTEXT)
    assert heard.captures == {CaptureOutcome.CAPTURED: 2 * (2 + WIDTHS) + len(CHUNKS)}
    for _ in range(50):
        prompt = [script.randrange(8, 200) for _ in range(script.choice((1, 3, 250, 505, 700)))]
        wants = script.choice(("greedy", "sampled", "truncated"))
        tokens = script.randrange(1, 40)
        params = {
            "greedy": SamplingParams(max_tokens=tokens),
            "sampled": SamplingParams(max_tokens=tokens, temperature=1.0, seed=script.randrange(2**32)),
            "truncated": SamplingParams(max_tokens=tokens, temperature=1.0, top_k=9),
        }[wants]
        before = Counter(heard.eager)
        replays, steps = heard.replays, heard.steps
        context = engine.open_context()
        turn = engine.generate(context, prompt, params)
        made = [step for step in turn if isinstance(step, Token)]
        context.close()
        assert heard.steps - steps == len(made)
        by_reason = Counter(token.eager for token in made)
        assert heard.replays - replays == by_reason.pop(None, 0)
        assert Counter(heard.eager) - before == by_reason
        for index, token in enumerate(made):
            position = len(prompt) - 1 + index
            expected = None
            if position >= 512:
                expected = EagerReason.CONTEXT_BEYOND_GRAPHS
            elif wants == "truncated":
                expected = EagerReason.UNSUPPORTED_REQUEST
            assert token.eager == expected
    engine.close()


def test_cug_06_replaced_weights_drop_the_graphs(folders: dict[str, Path]) -> None:
    heard = Heard()
    engine = opened(folders["llama"], heard)
    old = ids_of(engine, PROMPT, never_ending(max_tokens=50))
    assert isinstance(engine._decoder, Decoder)
    other = replace(engine._decoder.weights, head=torch.randn_like(engine._decoder.weights.head))
    engine.replace_weights(other)
    new = ids_of(engine, PROMPT, never_ending(max_tokens=50))
    assert heard.captures == {CaptureOutcome.CAPTURED: 2 * CONFIGURED}
    engine.close()
    eager = opened(folders["llama"], Heard(), graphs="off")
    eager.replace_weights(other)
    assert ids_of(eager, PROMPT, never_ending(max_tokens=50)) == new != old
    eager.close()


def test_verify_mode_compares_and_a_mismatch_ends_replays(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    engine = opened(folders["llama"], heard, verify_every=3)
    expected = ids_of(engine, PROMPT, never_ending(max_tokens=90, temperature=0.9, presence_penalty=0.5, seed=4))
    assert heard.mismatches == []
    assert heard.replays == 90
    # Weights that change under a graph's feet change replay and eager alike; a broken eager twin does not.
    honest = Decoder.step

    def wrong(self: Decoder, shape: StepShape) -> None:
        honest(self, shape)
        self.buffers.choice.token_id.add_(1)

    monkeypatch.setattr(Decoder, "step", wrong)
    assert (
        ids_of(engine, PROMPT, never_ending(max_tokens=3, temperature=0.9, presence_penalty=0.5, seed=4))
        == expected[:3]
    )
    assert len(heard.mismatches) == 1
    assert engine.graphs.eager_reason == EagerReason.SELF_CHECK_FAILED
    engine.close()


def test_memory_does_not_grow_after_warm_up(folders: dict[str, Path]) -> None:
    engine = opened(folders["llama"], Heard())
    ids_of(engine, PROMPT * 40, never_ending(max_tokens=200, temperature=1.0, top_p=0.9))
    reserved = torch.cuda.memory_reserved()
    for seed in range(20):
        ids_of(engine, PROMPT * 40, never_ending(max_tokens=200, temperature=1.0, top_p=0.9, seed=seed))
    assert torch.cuda.memory_reserved() == reserved
    engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_graphs_fill_the_cache_like_plain_torch(folders: dict[str, Path], family: str) -> None:
    """Chunks of every size, padded or not, at the start and later, against the CPU's body in float32."""
    engine = opened(folders[family], Heard(), precision="float32", slots=2)
    decoder, stepper = engine._decoder, engine._stepper
    assert isinstance(decoder, Decoder)
    script = random.Random(8)
    start = 0
    with torch.inference_mode():
        for tokens in (1, 16, 17, 100, 512, 300):
            ids = [script.randrange(320) for _ in range(tokens)]
            decoder.prefill(0, start, torch.tensor(ids, device="cuda"))
            stepper.prefill(1, start, ids)
            start += tokens
        for layer in decoder.cache.layers:
            for tensor in (layer.k, layer.v):
                expected, got = tensor[0, :, :start].double(), tensor[1, :, :start].double()
                assert float((got - expected).norm() / expected.norm()) < 1e-5
                assert not tensor[1, :, start:].any(), "padding is not written"
    engine.close()
