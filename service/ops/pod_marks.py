"""What a pod's annotations should say of its work, and when to say it. Pure: the caller brings the clock.

Two annotations. `controller.kubernetes.io/pod-deletion-cost` grows with the work, so that a scale-down takes idle pods
first. `karpenter.sh/do-not-disrupt` keeps Karpenter from moving the pod for its own ends while somebody listens, and
this is held to a limit three times over:

- Its value is never `true` but a duration, counted from the pod's start to the end of the limit. So Karpenter itself
  lets go in time, whatever became of this process. Karpenter before 1.12 knows no durations and takes no notice.
- This process takes it off when the limit is reached, or nobody listens any more, or the node has been told to go.
- It is not put on again before it was off for REST_S, known from an answer of the API. A process that has just started
  takes off what another may have left, and rests too. So neither a chain of turns nor one of restarts holds for good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from service.events import Load

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"

WRITE_EVERY_S: Final = 10.0  # each write is a new version of the pod for all that watch it
LET_GO_EVERY_S: Final = 2.0  # until an answer says that Karpenter is free
REST_S: Final = 120.0  # Karpenter looks about every 10 s, looks again after 15 s, and waits for `consolidateAfter`

_COST_OF_A_TURN: Final = 100
_COST_OF_A_QUARTER: Final = 25  # of the KV cache: idle sessions that are kept warm count less than one turn
_COST_OF_A_LOST_NODE: Final = -1000  # whoever scales down takes this pod first: it goes anyway


@dataclass(frozen=True, slots=True)
class Marks:
    """Both annotations, as they should be. `held_until_s` is on the caller's clock; None: Karpenter is free."""

    deletion_cost: int
    held_until_s: float | None = None

    def annotations(self, now_s: float, pod_age_s: float | None) -> dict[str, str | None]:
        """For a merge patch; None removes. A pod of unknown age (None) cannot be held."""
        held = None
        if self.held_until_s is not None and pod_age_s is not None:
            # Cut, not rounded: a second less is fine, a second more is not.
            whole_s = math.floor(pod_age_s + self.held_until_s - now_s)
            held = f"{whole_s}s" if whole_s >= 1 else None
        return {DELETION_COST: str(self.deletion_cost), DO_NOT_DISRUPT: held}


CLEARED: Final = Marks(0)


class PodMarks:
    """Follows the work. `limit_s` is the longest hold in one go; 0 never holds.

    `due_s`, then `next` and the write itself, then `wrote`.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._turns = 0
        self._cache_quarters = 0
        self._giving_way = False
        self._written: Marks | None = None  # None: not known
        self._wrote_s = -math.inf
        self._off_since_s = math.inf  # infinite: for all that is known it is on
        self._hold_ends_s = -math.inf

    def show(self, load: Load) -> bool:
        """How busy the server is. Whether that is news."""
        turns = load.active_turns + load.queued_turns
        quarters = min(3, 4 * load.kv_tokens_used // load.kv_tokens_total) if load.kv_tokens_total else 0
        news = (turns, quarters) != (self._turns, self._cache_quarters)
        self._turns, self._cache_quarters = turns, quarters
        return news

    def give_way(self, *, yes: bool) -> None:
        """The node was told to go, or is told so no longer."""
        self._giving_way = yes

    def due_s(self, now_s: float) -> float:
        """When the next write is due: not later than now, later, or never (infinite)."""
        if self._must_let_go(now_s):
            return self._wrote_s + LET_GO_EVERY_S
        if self._wanted(now_s) != self._written:
            return self._wrote_s + (LET_GO_EVERY_S if self._giving_way else WRITE_EVERY_S)
        changes_s = (self._hold_ends_s, self._off_since_s + REST_S) if self._wants_hold else ()
        return min((at_s for at_s in changes_s if at_s > now_s), default=math.inf)

    def next(self, now_s: float) -> Marks:
        """What to write now. Until `wrote` tells how that went, the API may have it or not."""
        marks = self._wanted(now_s)
        self._wrote_s, self._written = now_s, None
        if marks.held_until_s is not None:
            self._hold_ends_s, self._off_since_s = marks.held_until_s, math.inf
        return marks

    def wrote(self, marks: Marks, now_s: float) -> None:
        """The API has taken them. Not to be called for a write whose end is not known."""
        self._written = marks
        if marks.held_until_s is None and math.isinf(self._off_since_s):
            self._off_since_s = now_s

    @property
    def _wants_hold(self) -> bool:
        return self._limit_s > 0 and self._turns > 0 and not self._giving_way

    def _wanted(self, now_s: float) -> Marks:
        if self._giving_way:
            return Marks(_COST_OF_A_LOST_NODE)
        cost = self._turns * _COST_OF_A_TURN + self._cache_quarters * _COST_OF_A_QUARTER
        if not self._wants_hold:
            return Marks(cost)
        if now_s >= self._off_since_s + REST_S:
            return Marks(cost, now_s + self._limit_s)
        return Marks(cost, self._hold_ends_s if now_s < self._hold_ends_s else None)

    def _must_let_go(self, now_s: float) -> bool:
        return math.isinf(self._off_since_s) and (self._giving_way or now_s >= self._hold_ends_s)
