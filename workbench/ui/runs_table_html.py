"""The runs table as HTML: captions, scopes, signs beside colours, all text escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from html import escape
from typing import Any

from workbench.ui import html
from workbench.ui.runs_table import Page, RunsTable
from workbench.ui.runs_table_fields import SENTENCES, Row, cell, described, label, plain

STYLE = (
    html.STYLE
    + """<style>
.wb-runs-table {color: var(--jp-ui-font-color1, #222); font-size: 13px; line-height: 1.35}
.wb-scroll {overflow: auto; max-height: 21em; border: 1px solid var(--jp-border-color2, #bbb)}
.wb-scroll:focus-visible {outline: 2px solid var(--jp-brand-color1, #1565c0)}
.wb-runs-table table {border-collapse: collapse; width: 100%}
.wb-runs-table caption {text-align: left; font-weight: 600; padding: 4px 6px}
.wb-runs-table th, .wb-runs-table td {padding: 2px 8px; text-align: left; white-space: nowrap;
  max-width: 17em; overflow: hidden; text-overflow: ellipsis;
  border-bottom: 1px solid var(--jp-border-color3, #ddd)}
.wb-runs-table thead th {position: sticky; top: 0; background: var(--jp-layout-color2, #eee)}
.wb-runs-table td.n, .wb-runs-table th.n {text-align: right; font-variant-numeric: tabular-nums}
.wb-runs-table tbody tr.chosen {background: var(--jp-layout-color2, #eee)}
.wb-runs-table tr.chosen td:first-child {box-shadow: inset 4px 0 0 var(--jp-brand-color1, #1565c0)}
.wb-runs-table td.ended {font-weight: 600; color: var(--jp-error-color1, #b3261e)}
.wb-runs-table h3 {font-size: 14px; margin: 0.8em 0 0.2em}
.wb-card {background: #fff; color: #222; border: 1px solid var(--jp-border-color2, #bbb);
  border-radius: 4px; padding: 8px; margin: 4px 0; max-width: 1080px}
.wb-card img {display: block; max-width: 100%; height: auto}
</style>"""
)
"""Style to put once in a panel. Figures are drawn for paper, so their card is white in any
theme."""


def listing(runs_table: RunsTable, page: Page, chosen: Collection[str]) -> str:
    """A page of records. Rows are numbered as the choices beside the table are."""
    if not page.rows:
        return _framed("<p>No run matches.</p>" if runs_table.version else "<p>No run yet.</p>")
    fields = runs_table.fields
    numeric = {c for c in page.columns if c in fields and fields[c].kind == "number"}
    heads = [
        ("n", "#"),
        ("", "run"),
        *(("n" if c in numeric else "", label(c)) for c in page.columns),
    ]
    head = "".join(f"<th{_class(c)} scope='col'>{escape(text)}</th>" for c, text in heads)
    body = []
    for place, row in enumerate(page.rows, page.first):
        picked = row["key"] in chosen
        cells = [f"<td class='n'>{place}{' ✓' if picked else ''}</td>"]
        cells.append(f"<th scope='row'>{escape(plain(row['key'], 40))}</th>")
        for name in page.columns:
            text = escape(cell(name, row.get(name)))
            kind = "n" if name in numeric else ""
            if name == "status" and row["status"] != "ok":
                kind = "ended"
            cells.append(f"<td{_class(kind)}>{text}</td>")
        body.append(f"<tr{_class('chosen' if picked else '')}>{''.join(cells)}</tr>")
    caption = f"Runs {page.first} to {page.first + len(page.rows) - 1} of {page.total:,}"
    return _framed(
        f"<div class='wb-scroll' tabindex='0' role='region' aria-label='{caption}'>"
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


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
    return _framed("".join(parts))


def comparison(told: Mapping[str, Any]) -> str:
    """HTML of a comparison, as `runs_table_work.compared` returns it."""
    a, b = (escape(name) for name in told["names"])
    parts = [f"<h3>{a} and {b}</h3>"]
    if told["notes"]:
        parts.append(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in told['notes'])}</ul>")
    parts.append(card(told["png"], f"Losses of {told['names'][0]} and {told['names'][1]} over "
                                   "steps, and how long each lane is busy in a step."))  # fmt: skip
    settings = [[label(r["setting"]), *_pair(r["setting"], r)] for r in told["settings"]]
    parts.append(_table("Settings that differ", ["setting", "A", "B"], settings)
                 or "<p>All settings are the same.</p>")  # fmt: skip
    results = [[label(r["result"]), *_pair(r["result"], r), _times(r["ratio"])]
               for r in told["results"]]  # fmt: skip
    parts.append(_table("Results", ["result", "A", "B", "B / A"], results))
    columns = ("a", "b", "predicted_a", "predicted_b")
    heads = ["A measured", "B measured", "A predicted", "B predicted"]
    lanes = [
        [r["words"] + (f", rank {r['rank']}" if r["rank"] else ""),
         *(cell("seconds", r[c]) for c in columns)] for r in told["lanes"]
    ]  # fmt: skip
    parts.append(_table("Busy in a step", ["lane", *heads], lanes))
    moved = [[r["way"], *(cell("x_bytes", r[c]) for c in columns)] for r in told["bytes"]]
    parts.append(_table("Bytes moved in a step", ["way", *heads], moved))
    return _framed("".join(parts))


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
    return f"<div class='wb wb-runs-table' style='max-width: none'>{inner}</div>"


def _table(caption: str, heads: list[str], rows: list[list[str]]) -> str:
    """Cells after the first are values; nothing where there are no rows."""
    if not rows:
        return ""
    head = "".join(f"<th{_class('n' if i else '')} scope='col'>{escape(text)}</th>"
                   for i, text in enumerate(heads))  # fmt: skip
    body = "".join(
        f"<tr><th scope='row'>{escape(first)}</th>"
        + "".join(f"<td class='n'>{escape(text)}</td>" for text in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f"<table style='width: auto'><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _pair(name: str, row: Mapping[str, Any]) -> tuple[str, str]:
    long = name in SENTENCES
    a, b = (cell(name, row[which]) or "none" for which in "ab")
    return (a[:12], b[:12]) if long else (a, b)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}"


def _class(name: str) -> str:
    return f" class='{name}'" if name else ""
