"""The results page as HTML: captions, scopes, signs beside colours, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from workbench.ui import html
from workbench.ui.runs_table import RunsTable
from workbench.ui.runs_table_fields import (
    NOT_SHOWN,
    SENTENCES,
    Row,
    cell,
    described,
    label,
    plain,
)  # fmt: skip

STYLE = (
    html.STYLE
    + """<style>
.wb-card {background: #fff; color: #222; border: 1px solid var(--jp-border-color2, #bbb);
  border-radius: 4px; padding: 8px; margin: 4px 0; max-width: 1080px}
.wb-card img {display: block; max-width: 100%; height: auto}
.wb-runs-table.wb-scroll {overflow: auto; max-height: 24em}
</style>"""
)
"""Style to put once in a panel. Figures are drawn for paper, so their card is white in any
theme."""


def summary(runs_table: RunsTable, problems: int) -> str:
    """How many runs there are and how they ended, in a sentence."""
    counts = runs_table.counts()
    total = sum(counts.values())
    parts = [f"{n:,} {cell('status', status)}" for status, n in counts.items()]
    text = f"{total:,} {'run' if total == 1 else 'runs'}" + (
        f": {', '.join(parts)}" if parts else ""
    )
    if runs_table.pending:
        text += f"; {runs_table.pending:,} more are being read"
    if problems:
        text += f"; {problems} cannot be read, see below"
    return html.told(f"{text}.")


def problems_list(sentences: list[str], most: int = 10) -> str:
    """Files of the folder that are not counted, and why."""
    if not sentences:
        return ""
    shown = "".join(f"<li>{escape(one)}</li>" for one in sentences[:most])
    rest = len(sentences) - most
    more = f"<p>And {rest:,} more.</p>" if rest > 0 else ""
    return _framed(f"<h3>Not counted</h3><ul>{shown}</ul>{more}")


def run_details(row: Row, lines: list[str]) -> str:
    """One run: how it ended, why, and where it failed the last lines of its log."""
    parts = [f"<h3>{escape(described(row))}</h3>"]
    if row["status"] != "ok":
        why = plain(row.get("message") or "it gave no reason", 400)
        parts.append(f"<p class='bad'>{escape(cell('status', row['status']))}: {escape(why)}</p>")
        if lines:
            text = escape("\n".join(lines))
            parts.append(
                "<p>The last lines of its log:</p>"
                f"<pre tabindex='0' aria-label='last lines of the log'>{text}</pre>"
            )
    elif row.get("predicted_binding"):
        parts.append(f"<p>Bound by {escape(plain(row['predicted_binding'], 400))}.</p>")
    if row.get("notes"):
        parts.append(f"<p class='soft'>{escape(plain(row['notes'], 400))}</p>")
    every = [{"field": label(name), "value": cell(name, value) or "none"}
             for name, value in row.items() if name not in (*NOT_SHOWN, *SENTENCES)]  # fmt: skip
    table = html.table(every, "All that is known of it")
    parts.append(f"<details><summary>All fields</summary>{table}</details>")
    return _framed("".join(parts))


def comparison(rows: list[Row]) -> str:
    """The table of `runs_table_compare.compare`."""
    return _framed(html.table(rows, f"{sum(len(name) == 1 for name in rows[0])} runs compared"))


def downloads(words: str, links: Iterable[Mapping[str, str]]) -> str:
    """Files to download; those too large for a link, and folders, are only named."""
    shown = [
        f"<a download='{escape(link['name'])}' "
        f"href='data:application/octet-stream;base64,{escape(link['data'])}'>"
        f"Download {escape(link['name'])}</a>" if link["data"] else escape(link["name"])
        for link in links
    ]  # fmt: skip
    return f"<div class='wb' role='status'>{escape(words)} {', '.join(shown)}</div>"


def card(png: str, words: str) -> str:
    """A figure, and what it shows in words for who cannot see it."""
    return (
        f"<div class='wb-card'><img alt='{escape(words)}' "
        f"src='data:image/png;base64,{escape(png)}'></div>"
    )


def commands(found: Iterable[tuple[str, str]]) -> str:
    """(what it does, command line) pairs."""
    return _framed(
        "".join(
            f"<p>{escape(words)}</p><pre tabindex='0' aria-label='{escape(words)}'>"
            f"{escape(command)}</pre>"
            for words, command in found
        )
    )


def _framed(inner: str) -> str:
    return f"<div class='wb wb-runs-table wb-scroll' style='max-width: none'>{inner}</div>"
