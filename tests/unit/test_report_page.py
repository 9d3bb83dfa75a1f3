"""The building blocks of the report: text is escaped, nothing points outside the file."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pandas as pd
from matplotlib.figure import Figure

from workbench.report.page import Html, drawing, facts, number, page, table, tag

EVIL = '<script src="https://example.org/x.js">alert(1)</script> & "quotes"'


class Tags(HTMLParser):
    """Every element with its attributes, and that each one is closed in order."""

    VOID = ("meta", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((name, dict(attributes)))
        if name not in self.VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name


def test_text_is_escaped_wherever_it_enters() -> None:
    frame = pd.DataFrame({EVIL: [EVIL]})
    text = page(EVIL, tag("p", EVIL, title=EVIL), table(frame), facts({EVIL: EVIL}))
    names = [name for name, _ in Tags(text).found]
    assert "script" not in names
    assert text.count("&lt;script") == 7


def test_markup_is_not_escaped_twice() -> None:
    inner = tag("b", "1 < 2")
    assert tag("p", "so ", inner) == "<p>so <b>1 &lt; 2</b></p>"
    assert tag("ul", [tag("li", "a"), tag("li", "b")]) == "<ul><li>a</li><li>b</li></ul>"
    assert tag("p", None, class_=None) == "<p></p>"
    assert isinstance(inner, Html)


def test_a_table_formats_numbers_and_leaves_gaps_empty() -> None:
    frame = pd.DataFrame({"n": [1.0, None, 0.123456], "word": ["a", None, "c"]})
    text = table(frame)
    assert "0.1235" in text
    assert "nan" not in text.lower()
    assert text.count('class="n"') == 4
    assert (number(3.0), number(1234.5678)) == ("3", "1235")


def test_numbers_are_formatted_in_columns_that_hold_objects_too() -> None:
    frame = pd.DataFrame({"ratio": [1.74089709762533, None], "words": ["a", 2.5]}, dtype=object)
    text = str(table(frame))
    assert ">1.741<" in text
    assert "1.7408" not in text
    assert ">2.5<" in text


def test_a_cell_may_be_markup() -> None:
    def cell(name: str, value: object) -> Html | None:
        return tag("b", value) if name == "word" else None

    assert "<b>a</b>" in table(pd.DataFrame({"word": ["a"]}), cell)


def test_a_drawing_is_inside_the_file_and_described() -> None:
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    tags = Tags(drawing(figure, "a line", "caption")).found
    image = next(attributes for name, attributes in tags if name == "img")
    assert image["src"].startswith("data:image/svg+xml;base64,")
    assert image["alt"] == "a line"


def test_a_page_points_nowhere() -> None:
    text = page("title", tag("p", "text"))
    assert not re.search(r"(?:href|src|url\()\W*(?:https?:)?//", text)
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
