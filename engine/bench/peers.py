"""Others on the same weights in the same run: `transformers`, eager and compiled, and llama.cpp.

Rounds alternate between ours and theirs, so that what else the machine does meets all of them alike.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Literal

from engine.bench.contender import Contender, Soloist, Turn
from engine.bench.decode import LONG_TURN, SHORT_TURN, StepProfile, difference, profiled
from engine.bench.llamacpp import need_llamacpp, open_llamacpp
from engine.bench.opening import Setup, opened, round_context, torch_device, torch_dtype
from engine.bench.shapes import SHAPES
from engine.bench.transformers_peer import need_transformers, open_transformers
from engine.checkpoint import open_checkpoint
from engine.errors import InvalidRequestError
from engine.text import build_chat_text

PeerName = Literal["eager", "compiled", "llama.cpp"]

_SEED = 20
# Where the model is real: how its answers begin. Each is cut to, or repeated up to, the length asked for.
_TEXTS = """
The capital of France is a city on the river Seine. In the morning the bakers open first, then the newspaper stands,
and by nine o'clock the bridges are full of people who

To sort a list of numbers in Python without changing the original, call the built-in function sorted and keep what
it returns. To sort in descending order, pass the argument

Water boils at a lower temperature on a mountain than at the sea, because the pressure of the air is lower there.
This is why a cook who moves to the mountains has to

Once upon a time there was a violin player who practised alone every evening in a small room above a shop. One night
she heard somebody on the stairs, and she opened the door and

The theorem of Pythagoras says that in a right triangle the square of the longest side is equal to the sum of the
squares of the other two. For sides of three and four, the longest is
""".strip().split("\n\n")


@dataclass(frozen=True, slots=True)
class PeersCase:
    """What to compare. Every round is one turn of each contender on the same prompt."""

    setup: Setup
    peers: tuple[PeerName, ...]
    prompt_tokens: int
    new_tokens: int
    rounds: int

    def __post_init__(self) -> None:
        for name, least in (("prompt_tokens", 2), ("new_tokens", 3), ("rounds", 1)):
            if getattr(self, name) < least:
                raise InvalidRequestError(name, f"must be at least {least}; got {getattr(self, name)}")

    @property
    def real(self) -> bool:
        """Whether the weights mean something, so that answers are worth comparing."""
        return self.setup.model not in SHAPES


@dataclass(slots=True)
class PeerResult:
    """One row of the table.

    Attributes:
        player: `soloist`, or who it is compared with.
        precision: of the weights; llama.cpp keeps the file's own.
        kernels: that played ours; None for the others.
        seconds_per_token: median over the rounds of the mean step, prefill left out.
        least_seconds_per_token: of the best round.
        ours_is_faster: its seconds over ours, medians; 1 for ours.
        answers_equal: rounds whose ids were all ours; None where the weights are random or the ids are not told.
        first_difference: per round, the token at which the answers part, None where they do not.
        kernels_per_step, idle_share: of the device; None on a CPU and where nothing can be seen.
    """

    model: str
    precision: str
    player: str
    kernels: str | None
    seconds_per_token: float
    least_seconds_per_token: float
    cpu_seconds_per_token: float | None
    ours_is_faster: float
    answers_equal: int | None
    rounds: int
    first_difference: list[int | None] = field(default_factory=list)
    kernels_per_step: float | None = None
    idle_share: float | None = None


def require(peers: Sequence[PeerName]) -> None:
    """Import what they need. Raises MissingExtraError."""
    if "eager" in peers or "compiled" in peers:
        need_transformers()
    if "llama.cpp" in peers:
        need_llamacpp()


def compare(case: PeersCase) -> list[PeerResult]:
    """Measure ours and each of `case.peers`, round by round. Raises MissingExtraError where one is not there."""
    prompts = prompts_for(case)
    with ExitStack() as stack:
        ours = Soloist(stack.enter_context(opened(case.setup)))
        players: dict[str, Contender] = {"soloist": ours}
        for peer in case.peers:
            players[peer] = stack.enter_context(_open(peer, case))
        for player in players.values():
            player.turn(prompts[0], case.new_tokens)  # compiles, warms up
        turns: dict[str, list[Turn]] = {name: [] for name in players}
        for round_index in range(case.rounds):
            for name, player in players.items():
                turns[name].append(player.turn(prompts[round_index % len(prompts)], case.new_tokens))
        on_cuda = torch_device(case.setup.device).type == "cuda"
        # The compiled one would be compiled anew for turns of another length; llama.cpp is not seen from here.
        profiles = {
            name: _profile(player, prompts[0]) if on_cuda and name in ("soloist", "eager") else None
            for name, player in players.items()
        }
    kernels = {"soloist": ours.kernels}
    return [_result(name, turns, case, profiles[name], kernels.get(name)) for name in turns]


def prompts_for(case: PeersCase) -> list[list[int]]:
    """Prompts of exactly `prompt_tokens` ids: texts where the model is real, else random ids."""
    if not case.real:
        chooser = random.Random(_SEED)
        return [[chooser.randrange(SHAPES[case.setup.model].vocabulary) for _ in range(case.prompt_tokens)]]
    checkpoint = open_checkpoint(case.setup.model)
    tokenizer = build_chat_text(checkpoint.tokenizer, checkpoint.chat_template, checkpoint.defaults.eos_ids).tokenizer
    prompts = []
    for text in _TEXTS:
        ids = tokenizer.encode(" ".join(text.split()))
        prompts.append((ids * -(-case.prompt_tokens // len(ids)))[: case.prompt_tokens])
    return prompts


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first id that differs, None where one sequence begins with the other."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def context_for(prompt_tokens: int, new_tokens: int) -> int:
    """Tokens that a session must hold for a comparison."""
    return round_context(prompt_tokens + max(new_tokens, LONG_TURN))


def _open(name: PeerName, case: PeersCase) -> AbstractContextManager[Contender]:
    """A peer on the same weights."""
    if name == "llama.cpp":
        return open_llamacpp(case.setup)
    return open_transformers(case.setup, compiled=name == "compiled")


def _result(
    name: str, turns: dict[str, list[Turn]], case: PeersCase, profile: StepProfile | None, kernels: str | None
) -> PeerResult:
    def per_token(who: str) -> list[float]:
        return [turn.seconds / (case.new_tokens - 1) for turn in turns[who]]

    pairs = zip(turns["soloist"], turns[name], strict=True)
    parts = [first_difference(a.ids, b.ids) for a, b in pairs if a.ids and b.ids] if case.real else []
    cpu = [turn.cpu_seconds for turn in turns[name] if turn.cpu_seconds is not None]
    median = statistics.median(per_token(name))
    dtype = torch_dtype(case.setup.precision, torch_device(case.setup.device))
    return PeerResult(
        model=case.setup.model,
        precision="the file's" if name == "llama.cpp" else str(dtype).removeprefix("torch."),
        player=name,
        kernels=kernels,
        seconds_per_token=median,
        least_seconds_per_token=min(per_token(name)),
        cpu_seconds_per_token=statistics.median(cpu) / (case.new_tokens - 1) if cpu else None,
        ours_is_faster=median / statistics.median(per_token("soloist")),
        answers_equal=parts.count(None) if parts else None,
        rounds=case.rounds,
        first_difference=parts,
        kernels_per_step=None if profile is None else profile.kernels,
        idle_share=None if profile is None else max(0.0, 1 - profile.busy_s / median),
    )


def _profile(player: Contender, prompt_ids: Sequence[int]) -> StepProfile:
    short, long = (
        profiled(lambda n=tokens: player.turn(prompt_ids, n))[1]  # type: ignore[misc]
        for tokens in (SHORT_TURN, LONG_TURN)
    )
    return difference(short, long, LONG_TURN - SHORT_TURN)
