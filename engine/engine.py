"""open -> generate -> close. Every token of an answer is one decode step, and in steady state one replay."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine import faults
from engine.architecture import Architecture, GenericArchitecture
from engine.cache import Context
from engine.checkpoint import Checkpoint, GenericFolder, RemoteOptions, open_model
from engine.checkpoint.source import GenerationDefaults
from engine.config import EngineConfig
from engine.errors import ContextLengthError, DeviceError, GraphError, InvalidRequestError, StepError
from engine.events import CaptureCause, EagerReason, Listener, ignore
from engine.fingerprint import fingerprint
from engine.history import Resumption
from engine.kernels.ops import DecoderWeights
from engine.model import Decoder
from engine.offload import SavedContext, restore, save
from engine.outputs import TurnStep
from engine.params import SamplingParams
from engine.resumption import Bounds, check_resumption
from engine.selfcheck import SelfCheck
from engine.setup import NativeModel, context_of, load_model, make_player
from engine.stepper import Stepper
from engine.text import ChatText, build_chat_text
from engine.threads import available_threads
from engine.turn import Turns

if TYPE_CHECKING:
    from engine.generic.loading import GenericModel

_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class GraphState:
    """The pool as it stands. `eager_reason` says why decode steps are not replays where `enabled` is False.

    Both speak of the steps that graphs are configured for; where those are none, of every step. `context` is the
    longest that a replay reads, in tokens.
    """

    enabled: bool
    captured: int
    pool_bytes: int
    context: int
    eager_reason: EagerReason | None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is served. `context` in tokens; `fingerprint` is equal where answers are equal bit for bit.

    `decoder` is `native`, or `transformers` with its version: slower, for the reason in `architecture.why`.
    `kernels` play a step. `packed_bytes` are what it reads of stored blocks, None where it reads `precision`.
    """

    name: str
    architecture: Architecture | GenericArchitecture
    decoder: str
    context: int
    slots: int
    device: str
    precision: str
    threads: int
    kv_bytes: int
    fingerprint: str
    kernels: str
    packed_bytes: int | None


class Engine:
    """One decoder on one device. Every call must come from the thread that opened it."""

    @classmethod
    def open(cls, config: EngineConfig, listener: Listener = ignore) -> Engine:
        """Load the model and capture its graphs. Blocks for as long as that takes.

        Raises CheckpointError, for a model without a chat template too and before its weights are read;
        UnsupportedModelError, DeviceError, GraphError, OutOfDeviceMemoryError; StepError for what went wrong otherwise.
        """
        device = _device(config)
        checkpoint = open_model(config.model, config.sha256, _remote(config, listener))
        text = build_chat_text(checkpoint.tokenizer, checkpoint.chat_template, checkpoint.defaults.eos_ids)
        text.check_template()  # before gigabytes are read for a model that cannot be talked to
        with faults.named("loading the model"):
            torch.set_num_threads(config.threads or available_threads())
            model = load_model(checkpoint, config, device, _precision(config, device), listener)
        return cls(config, checkpoint, model, text, listener)

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint | GenericFolder,
        model: NativeModel | GenericModel,
        text: ChatText,
        listener: Listener,
    ) -> None:
        device = model.device
        self._config = config
        self._checkpoint = checkpoint
        self._listener = listener
        self._chunk = config.prefill_chunk
        self.text = text
        self.defaults: GenerationDefaults = checkpoint.defaults
        self._end_ids = frozenset(text.end_ids)
        context = context_of(config, model.architecture)
        if device.type == "cuda":
            # Capture needs a stream of its own, and all work shares it: one order, no events between streams.
            torch.cuda.synchronize(device)
            torch.cuda.set_stream(torch.cuda.Stream(device))
        with faults.named("setting the model up"):
            self._decoder, slots = make_player(config, model, context, len(self._end_ids))
            self._cache = self._decoder.cache
            self._stepper = Stepper(self._decoder, config, context, slots, listener)
            self._turns = Turns(self._decoder, self._stepper, self._chunk, context, self._end_ids, listener)
            with torch.inference_mode():
                self._stepper.capture(CaptureCause.START)
            self._self_check = SelfCheck(self._stepper, self._cache, listener)
            self._self_check.all()
        self.info = EngineInfo(
            name=checkpoint.name,
            architecture=model.architecture,
            decoder="native" if isinstance(model, NativeModel) else self._decoder.toolkit_name,
            context=context,
            slots=slots,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            precision=str(model.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            kv_bytes=self._cache.bytes,
            fingerprint=fingerprint(
                (checkpoint.digest(), model.architecture, model.dtype, self._decoder.toolkit_name),
                (context, config.prefill_chunk),
                device,
            ),
            kernels=self._decoder.toolkit_name,
            packed_bytes=self._decoder.packed_bytes if isinstance(self._decoder, Decoder) else None,
        )
        if config.graphs == "strict":
            self._require_graphs()

    @property
    def graphs(self) -> GraphState:
        """The graph pool now."""
        pool = self._stepper.graphs
        why = self._stepper.why_eager
        return GraphState(why is None, len(pool), pool.bytes, self._stepper.graph_context, why)

    def open_context(self) -> Context:
        """Take a KV slot for one conversation. Raises StepError where none is free."""
        return self._cache.open_context()

    def generate(
        self,
        context: Context,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        resumption: Resumption | None = None,
    ) -> Generator[TurnStep, None, None]:
        """Play one turn: Prefilled at once and after each chunk, then a Token a step.

        What `context` already holds of the prompt is not computed again. Ends after an end token, `max_tokens`, or a
        full context. Close it at any yield to cancel; the context stays usable. Turns of different contexts may take
        turns at yields: no bit of either changes.

        With a `resumption` the emitted ids are not yielded again, though they count for `max_tokens`: what has to be
        repeated of them is a Replayed a step, then the answer goes on.

        Raises ContextLengthError or InvalidRequestError before the first yield, StepError, ReplayError or
        FatalDeviceError later.
        """
        self._check(context, prompt_ids, params)
        if resumption is not None:
            bounds = Bounds(self.info.context, self._chunk, self.info.architecture.vocabulary)
            check_resumption(resumption, len(prompt_ids), params, self._end_ids, bounds)
        return self._turns.play(context, prompt_ids, params, resumption)

    def self_check(self) -> bool:
        """Compare one graph with its eager twin, the next one at each call; call it when nobody plays.

        Tells SelfChecked, and where they disagree VerifyMismatch: from then on steps are eager. False where there is
        nothing to check. Takes as long as two steps.
        """
        with faults.named("a self-check"):
            return self._self_check.one()

    def save(self, context: Context) -> SavedContext:
        """Copy an idle context's keys and values to host memory. Close it then, and its slot serves others."""
        self._check_idle(context)
        with faults.named("copying a context to the host"):
            return save(self._cache, context)

    def restore(self, saved: SavedContext) -> Context:
        """A context with what was saved, bit for bit, in a free slot. Raises StepError where there is none."""
        with faults.named("bringing a context back from the host"):
            return restore(self._cache, saved)

    def replace_weights(self, weights: DecoderWeights) -> None:
        """Serve other weights of the same shapes. Graphs hold the addresses of the old ones: they go first.

        Raises StepError while a context is open: its keys and values are of the old weights. And for a generic model.
        """
        decoder = self._decoder
        if not isinstance(decoder, Decoder):
            raise StepError("weights of a model that transformers plays cannot be replaced; open the other model")
        if self._cache.free_slots < self.info.slots:
            raise StepError("weights cannot be replaced while a context is open; close every context first")
        with faults.named("taking other weights"), torch.inference_mode():
            self._stepper.drop_graphs()
            decoder.use(weights)
            self._stepper.capture(CaptureCause.WEIGHTS_CHANGED)

    def close(self) -> None:
        """Give device memory back. The engine cannot be used afterwards."""
        self._stepper.drop_graphs()
        if isinstance(self._decoder, Decoder):
            self._decoder.close()
        del self._decoder, self._cache, self._stepper, self._turns, self._self_check

    def _check(self, context: Context, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        vocabulary = self.info.architecture.vocabulary
        params.check_vocabulary(vocabulary)
        if not prompt_ids:
            raise InvalidRequestError("messages", "make an empty prompt; send at least one message with text")
        if len(prompt_ids) > self.info.context:
            raise ContextLengthError(len(prompt_ids), self.info.context)
        if min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
            raise InvalidRequestError("messages", f"hold a token id beyond the vocabulary's {vocabulary}")
        self._check_idle(context)

    @staticmethod
    def _check_idle(context: Context) -> None:
        if context.closed or context.busy:
            state = "closed" if context.closed else "in use by another turn"
            raise StepError(f"the context is {state}; open another, or end that turn first")

    def _require_graphs(self) -> None:
        state = self.graphs
        wanted = self._stepper.wanted
        if not self._stepper.complete:
            raise GraphError(
                f"graphs are required, and {state.captured} of {wanted} were captured"
                + (f" ({state.eager_reason})" if state.eager_reason else "")
                + "; see the log for the first failure, or start with --graphs on to serve without them"
            )


def _remote(config: EngineConfig, listener: Listener) -> RemoteOptions:
    cache = None if config.model_cache is None else Path(config.model_cache)
    return RemoteOptions(config.s3_endpoint, cache, config.stream_buffer_bytes, listener)


def _device(config: EngineConfig) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise DeviceError(
            "device cuda was asked for and torch sees none; check the driver and that torch is a CUDA build, or use "
            "--device cpu"
        )
    if config.device == "cpu" or not has_cuda:
        if config.graphs == "strict":
            raise GraphError("graphs are required and there is no CUDA device to capture on; use --graphs on or off")
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _precision(config: EngineConfig, device: torch.device) -> torch.dtype:
    if config.precision != "auto":
        return _PRECISIONS[config.precision]
    return torch.bfloat16 if device.type == "cuda" else torch.float32
