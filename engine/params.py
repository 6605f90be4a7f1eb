"""What a caller may ask of one turn, as frozen data, checked where it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.errors import InvalidRequestError

if TYPE_CHECKING:
    from engine.text.grammar import Grammar

# Every size a request controls is capped here; README's table of caps is generated from these.
MAX_STOP_TOKEN_IDS = 32
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_TEMPERATURE = 100.0
MAX_PENALTY = 100.0
MAX_JSON_SCHEMA_BYTES = 64 * 1024
MAX_REGEX_BYTES = 4096
MAX_CHOICES = 256
MAX_CHOICE_BYTES = 1024
GREEDY_TEMPERATURE = 1e-4  # at or below it a turn is greedy: dividing by less only overflows


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen: a pure function of (logits, these, seed, absolute position).

    Attributes:
        max_tokens: completion tokens at most, >= 1; None means up to the end of the context.
        temperature: >= 0; at or below 1e-4 the choice is greedy.
        top_k: keep the k largest logits (ties kept); 0 keeps all.
        top_p: keep the smallest set of largest probabilities whose mass reaches it, in (0, 1].
        min_p: keep tokens with at least this share of the largest probability, in [0, 1].
        repetition_penalty: > 0; divides positive and multiplies negative logits of tokens in prompt or answer.
        presence_penalty, frequency_penalty: subtracted once, or once per occurrence, for answer tokens.
        seed: 0 .. 2**64-1; the same seed gives the same answer.
        stop_token_ids: end the answer, beside the model's own end tokens.
        logit_bias: token id -> value added to its logit, in [-100, 100].
        logprobs: report the log-probability of each chosen token.
        top_logprobs: how many alternatives to report, 0 .. 20; needs logprobs.
        grammar: the form that the answer must have (`ChatText.grammar` makes it), or None.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: bool = False
    top_logprobs: int = 0
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "must be at least 1", self.max_tokens)
        _in_range("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _check(0 <= self.top_k < 2**31, "top_k", "must be 0 (off) or a positive 32-bit number", self.top_k)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        _check(self.top_p > 0.0, "top_p", "must be above 0", self.top_p)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, MAX_PENALTY)
        _check(self.repetition_penalty > 0.0, "repetition_penalty", "must be above 0", self.repetition_penalty)
        _in_range("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _in_range("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        _check(0 <= self.seed < 2**64, "seed", "must fit into 64 unsigned bits", self.seed)
        _check(
            len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
            "stop_token_ids",
            f"holds at most {MAX_STOP_TOKEN_IDS} ids",
            len(self.stop_token_ids),
        )
        _check(
            len(self.logit_bias) <= MAX_LOGIT_BIAS,
            "logit_bias",
            f"holds at most {MAX_LOGIT_BIAS} entries",
            len(self.logit_bias),
        )
        for token_id, value in self.logit_bias.items():
            _check(token_id >= 0, "logit_bias", "token ids must not be negative", token_id)
            _in_range("logit_bias", value, -100.0, 100.0)
        _check(
            0 <= self.top_logprobs <= MAX_TOP_LOGPROBS,
            "top_logprobs",
            f"must be between 0 and {MAX_TOP_LOGPROBS}",
            self.top_logprobs,
        )
        _check(self.top_logprobs == 0 or self.logprobs, "top_logprobs", "needs logprobs", self.top_logprobs)

    @property
    def greedy(self) -> bool:
        """Whether the choice is the largest adjusted logit."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def adjusts_logits(self) -> bool:
        """Whether penalties, a bias or a grammar change the logits before the choice."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or bool(self.logit_bias)
            or self.grammar is not None
        )

    def check_vocabulary(self, vocabulary: int) -> None:
        """Refuse token ids that the model does not have."""
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", tuple(self.logit_bias))):
            for token_id in ids:
                _check(0 <= token_id < vocabulary, name, f"must be below the vocabulary's {vocabulary} ids", token_id)


def _check(holds: bool, name: str, rule: str, value: object) -> None:
    if not holds:
        raise InvalidRequestError(name, f"{rule}; got {value!r}")


def _in_range(name: str, value: float, low: float, high: float) -> None:
    _check(math.isfinite(value) and low <= value <= high, name, f"must be a number in [{low:g}, {high:g}]", value)
