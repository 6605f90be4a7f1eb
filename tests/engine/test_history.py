"""How a context's keys and values were made: cutting that record, and finding what may be used again."""

from __future__ import annotations

import pytest

from engine.history import Made, Segment, chunks, covered, cut, placed, reusable


def read(tokens: int, rows: int | None = None) -> Segment:
    return Segment(Made.PREFILL, tokens, tokens if rows is None else rows)


def made(tokens: int) -> Segment:
    return Segment(Made.DECODE, tokens, 1)


def test_a_prompt_is_cut_into_chunks_from_where_it_starts() -> None:
    assert chunks(5, 22, 8) == [read(8), read(8), read(1)]
    assert chunks(5, 5, 8) == []
    assert chunks(6, 5, 8) == []


def test_a_cut_remembers_rows_and_loses_tokens() -> None:
    whole = [read(8), made(3), read(4)]
    assert cut(whole, 11) == [read(8), made(3)]
    assert cut(whole, 5) == [read(5, rows=8)]
    assert cut(whole, 99) == whole
    assert covered(cut(whole, 9)) == 9
    assert list(placed(whole)) == [(0, read(8)), (8, made(3)), (11, read(4))]


@pytest.mark.parametrize(
    ("held", "wanted", "tokens", "same"),
    [
        ([read(8), made(3)], [read(8), made(5)], 99, 11),
        ([read(8), made(3)], [read(8), made(1), read(4)], 99, 9),
        ([read(8)], [read(8, rows=16), made(4)], 99, 0),
        ([read(16), made(2)], [read(4, rows=16), made(9)], 99, 4),
        ([read(4, rows=16), made(2)], [read(16), made(9)], 99, 0),
        ([read(8), read(8)], [read(8), read(8)], 12, 8),
        ([read(8), made(4)], [read(8), made(2), made(2)], 99, 12),
        ([read(8), made(4), read(3)], [read(8), made(4), read(4)], 99, 12),
        ([], [read(8)], 99, 0),
        ([made(4)], [read(4)], 99, 0),
    ],
)
def test_only_what_was_made_alike_is_used_again(
    held: list[Segment], wanted: list[Segment], tokens: int, same: int
) -> None:
    assert reusable(held, wanted, tokens) == same
