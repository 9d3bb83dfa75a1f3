"""Pieces of HTML for panels. All text goes through `escape`: logs and specs are other people's.

Colours are JupyterLab's own variables with fallbacks, so that light and dark themes both work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

STYLE = f"<style>{Path(__file__).with_name('panel.css').read_text()}</style>"
"""Style to put once on a page."""
PANEL = "wb-panel"
"""Class of a panel's outermost widget: what has the keyboard is seen there."""


def paragraph(text: str, kind: str = "") -> str:
    """Text; `kind` is ``soft`` for what matters less, ``bad`` for what went wrong."""
    return f'<div class="wb"><p class="{escape(kind)}">{escape(text)}</p></div>' if text else ""


def heading(text: str) -> str:
    """A heading of a part of a panel."""
    return f'<div class="wb"><h3>{escape(text)}</h3></div>'


def live(text: str, kind: str = "") -> str:
    """Text that changes, which a screen reader says when it does."""
    return f'<div class="wb {escape(kind)}" role="status" aria-live="polite">{escape(text)}</div>'


def log(text: str, label: str) -> str:
    """Lines of a log, as they are."""
    if not text:
        return ""
    return (
        f'<div class="wb"><pre tabindex="0" aria-label="{escape(label)}">{escape(text)}</pre></div>'
    )


def picture(png: str, words: str) -> str:
    """A picture from base64, as wide as there is room, with the words that stand for it."""
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{png}" style="max-width: 100%">'


def table(rows: Iterable[Mapping[str, Any]], caption: str) -> str:
    """Rows with the same keys as a table with a caption; nothing where there are none."""
    rows = list(rows)
    if not rows:
        return ""
    names = [name for name in rows[0] if any(str(row.get(name, "")) for row in rows)]
    head = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(row.get(name, '')))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wb"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
