"""On its way to the device: which ids may come next in an answer that must have a form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine.errors import InvalidRequestError, StepError
from engine.params import SamplingParams
from engine.sampler import SamplerTable

if TYPE_CHECKING:
    from engine.text.grammar import GrammarState


class Masks:
    """A row of pinned memory for each slot, from which masks go into the sampler's table.

    A step reads its mask from the device, and the next mask depends on that step's choice. So of an answer with a form
    no step is enqueued before the last has landed: the device waits while one mask is made and copied.
    """

    def __init__(self, table: SamplerTable) -> None:
        self._allowed = table.allowed
        self._pinned = table.allowed.device.type == "cuda"
        self._rows: dict[int, torch.Tensor] = {}

    def begin(self, slot: int, params: SamplingParams, answered: Sequence[int]) -> Constraint | None:
        """The constraint of a turn whose answer holds the ids `answered`, or None where it is free.

        Raises InvalidRequestError where `answered` is no beginning of an answer of that form.
        """
        if params.grammar is None:
            return None
        try:
            state = params.grammar.begin(answered)
        except StepError as error:
            raise InvalidRequestError("resume.token_ids", f"are of an answer of another form: {error}") from None
        row = self._rows.get(slot)
        if row is None or row.shape[0] < state.words:
            words = max(state.words, self._allowed.shape[1])
            row = self._rows[slot] = torch.zeros(words, dtype=torch.int32, pin_memory=self._pinned)
        return Constraint(state, row, self._allowed[slot])


class Constraint:
    """One turn's state in its grammar, and the way of its masks."""

    def __init__(self, state: GrammarState, row: torch.Tensor, allowed: torch.Tensor) -> None:
        self._state = state
        self._address = row.data_ptr()
        self._row = row[: allowed.shape[0]]
        self._allowed = allowed

    def send(self) -> None:
        """Enqueue the copy of the next step's mask. The last step must have landed: the row is written anew."""
        self._state.write_mask(self._address)
        self._allowed.copy_(self._row, non_blocking=True)

    def take(self, token_id: int) -> None:
        """The answer goes on with this id."""
        self._state.accept(token_id)
