"""One HTML file that needs nothing else: text is escaped, style and figures are inside.

A report travels by mail and is opened years later on a machine without a network, so nothing in it
points anywhere: no script, no font, no image that is not in the file. Figures are SVG drawings in
data addresses, which keeps their identifiers apart from each other.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from workbench.figures.style import as_svg

ENLARGED = 1.45
"""A figure on the screen over its size in print."""

STYLE = Path(__file__).with_name("page.css")


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
        tag("style", Html(f"\n{STYLE.read_text()}")),
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
