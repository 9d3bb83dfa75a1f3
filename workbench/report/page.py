"""One HTML file that needs nothing else: text is escaped, style and figures are inside.

A report travels by mail and is opened years later on a machine without a network, so nothing in it
points anywhere: no script, no font, no image that is not in the file. Figures are SVG drawings in
data addresses, which keeps their identifiers apart from each other.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench.figures.style import as_svg

ENLARGED = 1.45
"""A figure on the screen over its size in print."""

STYLE = """
:root { --text: #1d2126; --soft: #5a6470; --line: #d8dde3; --paper: #ffffff; --shade: #f4f6f8;
  --holds: #00714f; --fails: #b3261e; --untold: #7a5a00; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7eb; --soft: #a2acb8; --line: #3a424c;
  --paper: #15181c; --shade: #1f242a; --holds: #4cc38a; --fails: #ff8a80; --untold: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.2rem 4rem; max-width: 66rem; color: var(--text);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .4rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p, ul { margin: .4rem 0; } .soft { color: var(--soft); } nav a { margin-right: .9rem; }
a { color: inherit; }
.summary { list-style: none; padding: .6rem .9rem; background: var(--shade); }
table { border-collapse: collapse; margin: .6rem 0; font-size: .86rem; width: 100%; }
th, td { padding: .28rem .5rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; overflow-wrap: break-word; }
th { background: var(--shade); font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
.wide { overflow-x: auto; }
.figure { background: #fff; border: 1px solid var(--line); border-radius: 6px; margin: .8rem 0;
  padding: .6rem; text-align: center; }
.figure img { max-width: 100%; height: auto; }
figcaption { color: #444; font-size: .84rem; text-align: left; margin-top: .4rem; }
.holds, .fails, .untold { font-weight: 600; white-space: nowrap; }
.holds { color: var(--holds); } .fails { color: var(--fails); } .untold { color: var(--untold); }
.warn { border-left: 4px solid var(--fails); background: var(--shade); padding: .5rem .8rem; }
pre, code { font: .84rem/1.5 ui-monospace, monospace; }
pre { background: var(--shade); border: 1px solid var(--line); border-radius: 6px;
  padding: .7rem .9rem; overflow-x: auto; }
summary { cursor: pointer; color: var(--soft); }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  h2 { break-after: avoid; } .figure, tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; } summary { list-style: none; }
  a { text-decoration: none; } }
"""


class Html(str):
    """Text that is markup already; any other text is escaped when it enters a page."""

    __slots__ = ()


Cell = Callable[[str, Any], Html | None]
"""Turns a column's value into markup, or leaves it as it is."""


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """An element; `class_` is written ``class``, None and False leave a child or attribute out.

    >>> tag("p", "a < b", class_="soft")
    '<p class="soft">a &lt; b</p>'
    """
    words = "".join(
        f' {key.rstrip("_")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Elements and texts one after the other."""
    return Html("".join(_escaped(child) for child in children if child is not None))


def _escaped(child: Any) -> str:
    if isinstance(child, Html):
        return child
    return join(child) if isinstance(child, list | tuple) else html.escape(str(child))


def page(title: str, *body: Any) -> str:
    """The whole file."""
    head = (
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    whole = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def drawing(figure: Figure, alt: str, caption: str = "") -> Html:
    """A figure, larger than in print, and what it shows in words."""
    data = base64.b64encode(as_svg(figure).encode()).decode()
    width = f"width:{figure.get_figwidth() * ENLARGED:.1f}in"
    image = tag("img", src=f"data:image/svg+xml;base64,{data}", alt=alt, style=width)
    image = Html(image.removesuffix("</img>"))
    return tag("figure", image, tag("figcaption", caption) if caption else None, class_="figure")


def table(frame: pd.DataFrame, cell: Cell | None = None) -> Html:
    """A data frame without its index."""
    numeric = {
        name
        for name in frame.columns
        if pd.api.types.is_numeric_dtype(frame[name].dropna().infer_objects())
    }

    def shown(name: str, value: Any) -> Html:
        content = cell(name, value) if cell else None
        if content is None:
            content = "" if pd.isna(value) else number(value) if name in numeric else str(value)
        return tag("td", content, class_="n" if name in numeric else None)

    head = tag("tr", [tag("th", n, class_="n" if n in numeric else None) for n in frame.columns])
    body = [
        tag("tr", [shown(name, value) for name, value in zip(frame.columns, row, strict=True)])
        for row in frame.itertuples(index=False)
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="wide")


def without_empty(frame: pd.DataFrame) -> pd.DataFrame:
    """Without columns that say nothing."""
    told = frame.astype(object).where(frame.notna(), "").astype(str)
    return frame.loc[:, [(told[name] != "").any() for name in frame.columns]]


def facts(pairs: dict[str, Any]) -> Html:
    """Names and values."""
    return tag(
        "table",
        tag(
            "tbody", [tag("tr", tag("th", k, scope="row"), tag("td", v)) for k, v in pairs.items()]
        ),
    )


def number(value: float) -> str:
    """Four digits, whole numbers as they are."""
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value)}"
    return f"{value:.4g}"
