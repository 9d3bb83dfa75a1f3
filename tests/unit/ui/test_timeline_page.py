"""The timeline as a page and as a widget: nothing in the data can leave its place."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.ui.made_up import event, two_steps
from workbench.runs.store import Store
from workbench.ui.timeline.data import timeline_data
from workbench.ui.timeline.page import save_html, script, style, timeline_html
from workbench.ui.timeline.timeline import Timeline, timeline_of

EVIL = '</script><img src=x onerror="window.broken=1">&lt;<!--<script>'


class Elements(HTMLParser):
    """The elements of a page, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script":
            self.scripts[-1] += data


def hostile_page() -> str:
    return timeline_html(timeline_data(measured=[event(nbytes=1)], title=EVIL, notes=[EVIL]))


def test_hostile_text_is_no_element() -> None:
    elements = Elements(hostile_page())
    names = [name for name, _ in elements.found]
    assert names.count("script") == 2
    assert "img" not in names
    assert len(elements.scripts) == 2


def test_the_data_arrives_as_it_was() -> None:
    data = timeline_data(measured=two_steps(), title=EVIL)
    embedded, _ = Elements(timeline_html(data)).scripts
    assert json.loads(embedded) == data


def test_the_page_allows_its_own_script_only_and_no_request() -> None:
    meta = [attrs for name, attrs in Elements(hostile_page()).found if name == "meta"]
    policy = next(m["content"] for m in meta if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_script_puts_text_in_as_text_and_fetches_nothing() -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bFunction\(|\bfetch\("
        r"|XMLHttpRequest|WebSocket|sendBeacon|\bimport\b|https?:|</script"
    )
    assert not re.search(forbidden, script())
    assert not re.search(r"url\(|@import|https?:|</style", style())


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    data = timeline_data(measured=two_steps(), title="made up")
    path = save_html(data, tmp_path / "t.html")
    assert path.read_text() == timeline_html(data)
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_html({**data, "notes": [float("nan")]}, path)
    assert path.read_text() == timeline_html(data)
    assert [p.name for p in tmp_path.iterdir()] == ["t.html"]


def test_the_widget_carries_its_script_and_its_data(tmp_path: Path) -> None:
    widget = Timeline(measured=two_steps(), predicted=two_steps(), title="made up", layers=4)
    assert widget.data == timeline_data(
        measured=two_steps(), predicted=two_steps(), title="made up", layers=4
    )
    state = widget.get_state()
    assert state["_esm"] == script()
    assert state["_css"] == style()
    assert state["data"] == widget.data
    assert widget.save_html(tmp_path / "t.html").read_text() == timeline_html(widget.data)
    widget.close()


def test_a_widget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no event to show"):
        Timeline(title="nothing")


def test_a_run_without_a_timeline_has_no_widget(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run 42 kept no timeline, for there is no such run"):
        timeline_of(Store(tmp_path), "42")
