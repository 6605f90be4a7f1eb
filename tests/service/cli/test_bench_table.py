"""The table lines up."""

from __future__ import annotations

from service.cli.bench.table import table


def test_names_stand_left_and_numbers_right() -> None:
    assert table(("model", "ms"), [("a", "1.5"), ("longer", "10.25")]).splitlines() == [
        "model      ms",
        "------  -----",
        "a         1.5",
        "longer  10.25",
    ]
