"""Small pieces of HTML that several parts of the page use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape


def popover(name: str, label: str, body: str, kind: str, style: str = "", hint: str = "") -> str:
    """A button that opens a small panel; works by mouse, touch and keyboard, and needs no script."""
    title = f' title="{escape(hint)}"' if hint else ""
    styled = f' style="{style}"' if style else ""
    return (
        f'<button type="button" class="{kind}" popovertarget="{name}"{title}{styled}>{label}</button>'
        f'<span popover id="{name}" class="cl-pop">{body}</span>'
    )


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A plain table; the first cell of each row is its header. Cells are HTML."""
    top = "".join(f'<th scope="col">{h}</th>' for h in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{c}</td>" for c in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<div class="cl-scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption>{caption}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else format(value, form).replace("-", "−")


def signed(value: float, digits: int = 2) -> str:
    """A change with an arrow, so that no colour is needed to read it; nothing where nothing changed."""
    if not math.isfinite(value) or not round(abs(value), digits):
        return ""
    return f"{'▲' if value > 0 else '▼'} {abs(value):.{digits}f}"


def shown(token: str) -> str:
    """A token for people: its leading space is drawn."""
    return escape(token.replace(" ", "␣") if not token.strip() else token.strip())
