"""A plain table on a terminal: columns as wide as their widest cell, numbers to the right."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out `rows` under `heads`; the first column is a name and stands left."""
    widths = [max(len(line[column]) for line in (heads, *rows)) for column in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join((first, *others)).rstrip()

    return "\n".join([line(heads), "  ".join("-" * width for width in widths), *(line(row) for row in rows)])
