"""Pieces of HTML for panels. All text goes through `escape`: logs and specs are other people's.

Colours are JupyterLab's own variables with fallbacks, so that light and dark themes both work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

STYLE = """<style>
.wb {color: var(--jp-ui-font-color1, #222); font-size: 13px; line-height: 1.45; max-width: 75em}
.wb h2 {font-size: 17px; margin: 0.6em 0 0.2em}
.wb h3 {font-size: 14px; margin: 0.8em 0 0.2em}
.wb table {border-collapse: collapse; margin: 0.3em 0}
.wb caption {text-align: left; font-weight: 600; padding: 0.2em 0}
.wb th, .wb td {text-align: left; vertical-align: top; padding: 2px 10px 2px 0;
  border-bottom: 1px solid var(--jp-border-color2, #bbb)}
.wb pre {background: var(--jp-layout-color2, #eee); color: inherit; padding: 6px; margin: 0.3em 0;
  max-height: 14em; overflow: auto; white-space: pre-wrap; font-size: 12px}
.wb .soft {color: var(--jp-ui-font-color2, #555)}
.wb .bad, .wb.bad {border-left: 4px solid var(--jp-error-color1, #b00); padding-left: 8px}
.wb-panel :is(.jupyter-widgets, .jupyter-widgets *):focus-visible {outline-offset: -2px;
  outline: 2px solid var(--jp-brand-color1, #1565c0) !important}
.wb-panel .jupyter-widgets input:is([type=checkbox], [type=range]):focus-visible {
  outline-offset: 2px}
.wb-gone {position: sticky; top: 0; z-index: 2; padding: 8px; color: var(--jp-ui-font-color1, #222);
  background: var(--jp-layout-color2, #eee); border-left: 4px solid var(--jp-error-color1, #b00)}
.wb-panel .widget-checkbox {overflow: visible}
.wb-panel .widget-html-content {min-width: 0}
.wb-panel .widget-dropdown > select {appearance: auto; background-image: none !important}
</style>"""
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
