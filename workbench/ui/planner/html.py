"""The planner's answer as HTML: a bar of memory for each tier, by kind of buffers.

Colours are Okabe and Ito's; no colour says what no word says. All text is escaped.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from workbench.core.bytesize import format_bytes
from workbench.ui import html
from workbench.ui.planner.control import Reply, Row
from workbench.ui.planner.words import TIERS

COLORS = {
    "weights": "#0072B2",
    "optimizer states": "#E69F00",
    "gradients": "#009E73",
    "activations and scratch": "#CC79A7",
    "libraries and tokens": "#8C8C8C",
}
SEEN = 1 / 300
"""Parts smaller than this share of a bar are not named."""
STYLE = f"<style>{Path(__file__).with_name('answer.css').read_text()}</style>"
"""Style to put once on a page."""


def bars(reply: Reply) -> str:
    """One bar a tier that is used or has a budget; nothing where there is no answer."""
    row = reply.row
    if row is None:
        return ""
    tiers = [t for t in TIERS if row.peak.get(t) or (t in reply.budgets and row.peak)]
    return "".join(bar(tier, row, reply.budgets.get(tier)) for tier in tiers)


def bar(tier: str, row: Row, budget: int | None) -> str:
    """A bar of a tier's memory by kind of buffers; bytes over the budget are hatched."""
    peak = row.peak.get(tier, 0)
    words = f"{TIERS[tier]}: {format_bytes(peak)}"
    words += f" of {format_bytes(budget)}" if budget else ""
    if budget and peak <= budget:
        words += f" ({peak / budget:.0%})"
    over = max(0, peak - budget) if budget else 0
    words += f", {format_bytes(over)} too much" if over else ""
    whole = max(peak, budget or 0, 1)
    parts = row.parts.get(tier) or ({"": peak} if peak else {})
    spans = "".join(
        f'<span style="width: {100 * nbytes / whole:.2f}%; '
        f'background: {COLORS.get(name, "#8C8C8C")}"></span>'
        for name, nbytes in parts.items()
    )
    if over:
        spans += f'<div class="wb-over" style="width: {100 * over / whole:.2f}%"></div>'
        spans += f'<i style="left: {100 * budget / whole:.2f}%"></i>'
    seen = {name: nbytes for name, nbytes in parts.items() if name and nbytes >= SEEN * whole}
    made_of = "; ".join(f"{name} {format_bytes(n)}" for name, n in seen.items())
    keys = "".join(
        f'<li><span class="wb-key" style="background: {COLORS.get(name, "#8C8C8C")}"></span>'
        f"{escape(name)} {escape(format_bytes(nbytes))}</li>"
        for name, nbytes in seen.items()
    )
    label = escape(f"{words}{': ' + made_of if made_of else ''}")
    return (
        f'<div class="wb wb-tier"><div>{escape(words[0].upper() + words[1:])}</div>'
        f'<div class="wb-bar" role="img" aria-label="{label}">{spans}</div>'
        f'<ul class="wb-parts" aria-hidden="true">{keys}</ul></div>'
    )


def answer(headline: str, state: str, *, bad: bool) -> str:
    """The answer in a sentence, said aloud when it changes, and whether a better one comes."""
    more = f' <span class="soft">{escape(state)}</span>' if state else ""
    kind = "wb bad" if bad else "wb"
    return (
        f'<div class="{kind}" role="status" aria-live="polite">'
        f'<span class="wb-answer">{escape(headline)}</span>{more}</div>'
    )


def details(*sentences: str) -> str:
    """Sentences, each on a line of its own; empty ones left out."""
    return "".join(html.paragraph(sentence) for sentence in sentences if sentence)
