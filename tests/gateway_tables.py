"""The tables of docs/gateway.md that come from the code. `python -m tests.gateway_tables` writes them into the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from service.gateway.asked import CHAT_FIELDS, COMPLETION_FIELDS
from service.gateway.errors import TABLE
from service.gateway.fields import Field
from service.gateway.messages import MESSAGE_FIELDS
from service.settings import GATEWAY_SETTINGS
from tests.readme_tables import README, with_tables

PAGE = README.parent / "docs" / "gateway.md"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in (" | ".join(heads), " | ".join("---" for _ in heads), *lines))


def _fields(fields: Sequence[Field]) -> str:
    order = {use: number for number, use in enumerate(dict.fromkeys(field.use for field in fields))}
    rows = [
        (f"`{field.name}`", field.use.value, field.note) for field in sorted(fields, key=lambda field: order[field.use])
    ]
    return _table(("field", "", ""), rows)


def _errors() -> str:
    return _table(
        ("status", "`type`", "`code`", "when"),
        [(str(row.status), f"`{row.kind}`", f"`{row.code}`, or the server's reason", row.meaning) for row in TABLE],
    )


def _settings() -> str:
    rows = [(f"`{setting.flag}`", f"`{setting.shown_default}`", setting.help) for setting in GATEWAY_SETTINGS]
    return _table(("flag", "default", ""), rows)


TABLES: dict[str, Callable[[], str]] = {
    "chat": partial(_fields, CHAT_FIELDS),
    "message": partial(_fields, MESSAGE_FIELDS),
    "completion": partial(_fields, COMPLETION_FIELDS),
    "errors": _errors,
    "settings": _settings,
}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), TABLES), encoding="utf-8")
