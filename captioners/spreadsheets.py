"""Tables for spreadsheets.

A cell that a spreadsheet would take for a formula is quoted, whoever wrote the text in it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@")


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A head and rows as CSV."""
    out = io.StringIO()
    csv.writer(out).writerows([head, *([_plain(cell) for cell in row] for row in rows)])
    return out.getvalue()


def _plain(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
