"""service.session: the table, by examples and as a state machine."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from service.session import TRANSITIONS, SessionAct, SessionKey, SessionState, SessionStateError, SessionTable

A, B, C = (SessionKey("caller", name) for name in "abc")


Sessions = SessionTable[object, object]


def act(table: Sessions, what: SessionAct, key: SessionKey) -> None:
    """Does `what` to this very key."""
    if what is SessionAct.OPEN:
        table.open(key, object())
    elif what is SessionAct.BEGIN:
        table.begin(key)
    elif what is SessionAct.END:
        table.end(key)
    elif what is SessionAct.DROP:
        table.drop(key)
    elif what is SessionAct.EVICT:
        table.evict(key)
    elif what is SessionAct.SHELVE:
        table.shelve(key, object(), 1)
    else:
        table.take(key)


def in_state(state: SessionState) -> Sessions:
    table: Sessions = SessionTable(2, shelf_bytes=1)
    if state is not SessionState.ABSENT:
        table.open(A, object())
    if state in (SessionState.IDLE, SessionState.SHELVED):
        table.end(A)
    if state is SessionState.SHELVED:
        table.shelve(A, object(), 1)
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
    table: SessionTable[str, str] = SessionTable(3)
    for key, context in ((A, "a"), (B, "b"), (C, "c")):
        table.open(key, context)
        table.end(key)
    assert table.begin(A) == "a"
    table.end(A)
    table.begin(B)
    assert table.oldest_idle() == (C, "c")
    assert table.evict(C) == "c"
    assert table.oldest_idle() == (A, "a")
    assert table.evict(A) == "a"
    assert table.oldest_idle() is None


def test_the_shelf_forgets_who_was_used_longest_ago_and_only_as_much_as_it_must() -> None:
    table: SessionTable[str, str] = SessionTable(1, shelf_bytes=10)
    keys = [SessionKey("caller", str(number)) for number in range(4)]
    for key, size, forgotten in zip(keys, (4, 4, 3, 10), ([], [], ["0"], ["1", "2"]), strict=True):
        table.open(key, key.session_id)
        table.end(key)
        assert table.shelve(key, key.session_id, size) == forgotten
    assert table.shelved() == ("3",)
    assert table.state(keys[0]) is SessionState.ABSENT
    assert table.take(keys[3]) == "3"
    table.open(keys[3], "again")
    table.end(keys[3])
    assert (table.fits(10), table.fits(11)) == (True, False)
    with pytest.raises(SessionStateError, match="does not fit"):
        table.shelve(keys[3], "3", 11)
    assert table.state(keys[3]) is SessionState.IDLE


def test_sessions_are_bounded() -> None:
    table: Sessions = SessionTable(1)
    table.open(A, object())
    with pytest.raises(SessionStateError, match="limit"):
        table.open(B, object())


def test_eng_09_a_context_never_serves_two_keys() -> None:
    table: Sessions = SessionTable(2)
    context = object()
    table.open(SessionKey("alice", "chat"), context)
    with pytest.raises(SessionStateError, match="another session"):
        table.open(SessionKey("bob", "chat"), context)
    assert table.state(SessionKey("bob", "chat")) is SessionState.ABSENT


class Table(RuleBasedStateMachine):
    """Any order of lawful acts: bounds hold, keys keep their own context, and eviction follows the last use."""

    LIMIT, SHELF = 3, 6

    def __init__(self) -> None:
        super().__init__()
        self.table: Sessions = SessionTable(self.LIMIT, self.SHELF)
        self.shelf: dict[SessionKey, tuple[object, int]] = {}
        self.model: dict[SessionKey, object] = {}
        self.busy: set[SessionKey] = set()

    keys = st.sampled_from([A, B, C, SessionKey("other", "a"), SessionKey("other", "b")])

    @rule(key=keys)
    def turn_begins(self, key: SessionKey) -> None:
        if key in self.busy or key in self.shelf:
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
        assert self.table.oldest_idle() == (None if oldest is None else (oldest, self.model[oldest]))
        if oldest is not None:
            assert self.table.evict(oldest) is self.model.pop(oldest)

    @precondition(lambda self: len(self.model) > len(self.busy))
    @rule(size=st.integers(0, 4))
    def shelve(self, size: int) -> None:
        oldest = next(key for key in self.model if key not in self.busy)
        del self.model[oldest]
        copy = object()
        for forgotten in self.table.shelve(oldest, copy, size):
            assert forgotten is self.shelf.pop(next(iter(self.shelf)))[0]
        self.shelf[oldest] = (copy, size)

    @precondition(lambda self: self.shelf)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.shelf)))
        assert self.table.take(key) is self.shelf.pop(key)[0]

    @invariant()
    def agrees(self) -> None:
        assert len(self.table) == len(self.model) <= self.LIMIT
        assert self.table.shelved() == tuple(copy for copy, _ in self.shelf.values())
        assert sum(size for _, size in self.shelf.values()) <= self.SHELF
        assert set(map(id, self.table.contexts())) == set(map(id, self.model.values()))


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
