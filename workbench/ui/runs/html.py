"""Pieces of the results page as HTML: signs beside colours, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from workbench.runs import columns
from workbench.runs.columns import Row, plain
from workbench.ui import html

MOST_PROBLEMS = 10
CARD = (
    "background: #fff; color: #222; max-width: 1080px; border: 1px solid; border-radius: 4px; "
    "padding: 8px; margin: 4px 0"
)
"""Figures are drawn for paper, so their card is white in any theme."""


def summary(counts: Mapping[str, int], pending: int, problems: int) -> str:
    """How many runs there are and how they ended, in a sentence."""
    total = sum(counts.values())
    parts = [f"{n:,} {columns.cell('status', status)}" for status, n in counts.items()]
    text = f"{total:,} {'run' if total == 1 else 'runs'}: {', '.join(parts)}".removesuffix(": ")
    text += f"; {pending:,} more are being read" if pending else ""
    return html.live(f"{text}{f'; {problems} cannot be read, see below' if problems else ''}.")


def problems_list(sentences: list[str]) -> str:
    """Files of the folder that are not counted, and why."""
    more = [f"And {len(sentences) - MOST_PROBLEMS:,} more."] * (len(sentences) > MOST_PROBLEMS)
    return "".join(html.paragraph(one, "bad") for one in sentences[:MOST_PROBLEMS] + more)


def run_details(row: Row, lines: list[str]) -> str:
    """One run: how it ended, why, and where it failed the last lines of its log."""
    parts = [html.heading(columns.described(row))]
    if row["status"] != "ok":
        why = plain(row.get("message") or "it gave no reason", 400)
        parts.append(html.paragraph(f"{columns.cell('status', row['status'])}: {why}", "bad"))
        parts.append(html.log("\n".join(lines), "last lines of the log"))
    elif row.get("predicted_binding"):
        parts.append(html.paragraph(f"Bound by {plain(row['predicted_binding'], 400)}."))
    parts.append(html.paragraph(plain(row.get("notes") or "", 400), "soft"))
    names = [name for name in row if name not in columns.NOT_SHOWN | columns.SENTENCES]
    every = [{"field": columns.label(n), "value": columns.cell(n, row[n]) or "none"} for n in names]
    table = html.table(every, "All that is known of it")
    parts.append(f"<details><summary>All fields</summary>{table}</details>")
    return "".join(parts)


def downloads(words: str, links: Iterable[Mapping[str, str]]) -> str:
    """Files to download; those too large for a link, and folders, are only named."""
    start = "href='data:application/octet-stream;base64,"
    shown = [
        f"<a download='{escape(one['name'])}' {start}{one['data']}'>Download {escape(one['name'])}"
        "</a>" if one["data"] else escape(one["name"])
        for one in links
    ]  # fmt: skip
    return f"<div class='wb' role='status'>{escape(words)} {', '.join(shown)}</div>"


def card(png: str, words: str) -> str:
    """A figure, and what it shows in words for who cannot see it."""
    return f'<div class="wb-card" style="{CARD}">{html.picture(png, words)}</div>'
