"""The search finds what is faster, skips what is refused, and ends in time; its entries are Python for the table."""

from __future__ import annotations

import pytest
import torch

from engine.bench.candidates import changes, matrix_of, row_candidates
from engine.bench.shapes import SHAPES
from engine.bench.tune import TuneCase, TuneResult, entries, search, tune
from engine.errors import DeviceError
from engine.kernels.tuning import AttendSetting, RowSetting, Tuning

SHAPE = SHAPES["llama-3.1-8b"]
EMPTY = Tuning(rows={}, attend={}, norm_apart=frozenset())
NEVER = float("inf")


def likes_four_warps_for_down(tuning: Tuning) -> float:
    setting = tuning.row_setting("down", *matrix_of(SHAPE, "down"))
    return 1.0 + abs(setting.warps - 4) + setting.resident + len(tuning.norm_apart)


def test_the_search_keeps_what_is_faster_and_leaves_the_rest_alone() -> None:
    best, tried, complete = search(SHAPE, EMPTY, likes_four_warps_for_down, NEVER, long=False)
    assert complete
    matrix = matrix_of(SHAPE, "down")
    nearest = min(abs(setting.warps - 4) for setting in row_candidates("down", *matrix))
    assert abs(best.row_setting("down", *matrix).warps - 4) == nearest
    assert set(best.rows) <= {("down", *matrix)}
    assert not best.norm_apart
    assert {each.kernel for each in tried} == {"attend", "out", "gate_up", "down", "qkv", "head", "norm"}


def test_a_setting_that_the_device_refuses_is_skipped() -> None:
    def refuses(tuning: Tuning) -> float:
        if tuning is not EMPTY:
            raise RuntimeError("out of resources")
        return 1.0

    best, tried, complete = search(SHAPE, EMPTY, refuses, NEVER, long=False)
    assert best is EMPTY
    assert complete
    assert all(each.seconds is None for each in tried)


def test_the_search_ends_when_its_time_does() -> None:
    now = iter(range(100))
    _, tried, complete = search(
        SHAPE, EMPTY, lambda tuning: 1.0, deadline_s=5, long=False, clock=lambda: float(next(now))
    )
    assert not complete
    assert len(tried) == 5


def test_a_long_context_looks_at_attention_alone() -> None:
    groups = changes(SHAPE, EMPTY, long=True)
    assert {candidate.kernel for candidate in next(groups)} == {"attend"}
    with pytest.raises(StopIteration):
        groups.send(EMPTY)


def test_entries_are_python_for_the_table() -> None:
    result = TuneResult(
        model="a",
        layers=2,
        before_s=2e-6,
        after_s=1e-6,
        tried=(),
        complete=True,
        rows={("down", 64, 128): RowSetting(2, 4)},
        attend={(8, 2, 64): AttendSetting(tile=64, warps=4, single=256, split_tile=64, splits=16)},
        norm_apart=False,
    )
    names = {"rows": {}, "attend": {}, "RowSetting": RowSetting, "AttendSetting": AttendSetting}
    exec(entries(result), names)
    assert names["rows"] == result.rows
    assert names["attend"] == result.attend


def test_a_cpu_has_nothing_to_tune() -> None:
    with pytest.raises(DeviceError, match="fused kernels"):
        tune(TuneCase("smollm2-135m", "cpu", "auto", 1.0, long=False))


@pytest.mark.gpu
def test_on_cuda_a_short_search_is_no_slower_than_the_table() -> None:
    result = tune(TuneCase("smollm2-135m", "cuda", "auto", 20.0, long=False))
    assert result.tried
    assert any(each.seconds is not None for each in result.tried)
    assert result.after_s < 1.02 * result.before_s
    torch.cuda.synchronize()
