"""service.session: the table, by examples and as a state machine."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from service.session import TRANSITIONS, SessionAct, SessionKey, SessionState, SessionStateError, SessionTable

A, B, C = (SessionKey("caller", name) for name in "abc")


def act(table: SessionTable[object], what: SessionAct, key: SessionKey) -> None:
    """Does `what` to this very key."""
    if what is SessionAct.OPEN:
        table.open(key, object())
    elif what is SessionAct.BEGIN:
        table.begin(key)
    elif what is SessionAct.END:
        table.end(key)
    elif what is SessionAct.DROP:
        table.drop(key)
    elif table.evict_oldest() is None:
        raise SessionStateError("nothing is idle")


def in_state(state: SessionState) -> SessionTable[object]:
    table: SessionTable[object] = SessionTable(2)
    if state is not SessionState.ABSENT:
        table.open(A, object())
    if state is SessionState.IDLE:
        table.end(A)
    return table


@pytest.mark.parametrize(("state", "what"), list(product(SessionState, SessionAct)))
def test_what_is_not_in_the_table_raises(state: SessionState, what: SessionAct) -> None:
    table = in_state(state)
    assert table.state(A) is state
    if (state, what) in TRANSITIONS:
        act(table, what, A)
        assert table.state(A) is TRANSITIONS[state, what]
    else:
        with pytest.raises(SessionStateError):
            act(table, what, A)
        assert table.state(A) is state


def test_the_session_used_longest_ago_is_evicted_and_busy_ones_never() -> None:
    table: SessionTable[str] = SessionTable(3)
    for key, context in ((A, "a"), (B, "b"), (C, "c")):
        table.open(key, context)
        table.end(key)
    assert table.begin(A) == "a"
    table.end(A)
    table.begin(B)
    assert table.evict_oldest() == "c"
    assert table.evict_oldest() == "a"
    assert table.evict_oldest() is None


def test_sessions_are_bounded() -> None:
    table: SessionTable[object] = SessionTable(1)
    table.open(A, object())
    with pytest.raises(SessionStateError, match="limit"):
        table.open(B, object())


def test_eng_09_a_context_never_serves_two_keys() -> None:
    table: SessionTable[object] = SessionTable(2)
    context = object()
    table.open(SessionKey("alice", "chat"), context)
    with pytest.raises(SessionStateError, match="another session"):
        table.open(SessionKey("bob", "chat"), context)
    assert table.state(SessionKey("bob", "chat")) is SessionState.ABSENT


class Table(RuleBasedStateMachine):
    """Any order of lawful acts: bounds hold, keys keep their own context, and eviction follows the last use."""

    LIMIT = 3

    def __init__(self) -> None:
        super().__init__()
        self.table: SessionTable[object] = SessionTable(self.LIMIT)
        self.model: dict[SessionKey, object] = {}
        self.busy: set[SessionKey] = set()

    keys = st.sampled_from([A, B, C, SessionKey("other", "a"), SessionKey("other", "b")])

    @rule(key=keys)
    def turn_begins(self, key: SessionKey) -> None:
        if key in self.busy:
            return
        if key in self.model:
            assert self.table.begin(key) is self.model[key]
        elif len(self.model) < self.LIMIT:
            self.model[key] = object()
            self.table.open(key, self.model[key])
        else:
            return
        self.busy.add(key)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), sound=st.booleans())
    def turn_ends(self, data: st.DataObject, sound: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.busy)))
        self.busy.discard(key)
        if sound:
            self.table.end(key)
            self.model[key] = self.model.pop(key)
        else:
            assert self.table.drop(key) is self.model.pop(key)

    @rule()
    def evict(self) -> None:
        oldest = next((key for key in self.model if key not in self.busy), None)
        assert self.table.evict_oldest() is (None if oldest is None else self.model.pop(oldest))

    @invariant()
    def agrees(self) -> None:
        assert len(self.table) == len(self.model) <= self.LIMIT
        assert set(map(id, self.table.contexts())) == set(map(id, self.model.values()))


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
