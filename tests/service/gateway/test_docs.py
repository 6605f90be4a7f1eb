"""docs/gateway.md says what the code says."""

from __future__ import annotations

from tests.gateway_tables import PAGE, TABLES
from tests.readme_tables import with_tables


def test_tables_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text, TABLES), "run `python -m tests.gateway_tables`"
