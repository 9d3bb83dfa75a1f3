"""All panels on one page: made when they are opened, and going on from one another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.page import TEMPLATE, configuration, notebook
from workbench.ui.dashboard import Dashboard
from workbench.ui.talk import Question


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Dashboard]:
    page = Dashboard(tmp_path / "results", size="tiny")
    yield page
    for panel in page.panels.values():
        panel.close()


def test_a_tab_is_made_when_it_is_opened(page: Dashboard) -> None:
    assert list(page.panels) == ["Results"]
    page.tabs.selected_index = 2
    assert list(page.panels) == ["Results", "Sweep"]
    panel = page.panels["Sweep"]
    page.open("Results")
    page.open("Sweep")
    assert page.panels["Sweep"] is panel
    with pytest.raises(ValueError, match="Nowhere"):
        page.open("Nowhere")


def test_what_was_planned_can_be_run(page: Dashboard) -> None:
    asked = Question.of(method="l2l", layers=48, device_memory="24GiB", dtype="bf16", heads=32)
    page.open("Plan")
    page.panels["Plan"]._on_use(asked.spec)
    assert page.tabs.titles[page.tabs.selected_index] == "Sweep"
    form = page.panels["Sweep"].form
    assert form.specs() == [asked.spec]
    assert form.text("layers") == "48"
    assert form.text("hidden") == "", "what is usual is not written down"
    assert not page.panels["Sweep"].buttons["start"].disabled


def test_the_served_page_asks_nobody_else_and_has_both_themes(tmp_path: Path) -> None:
    assert "prefers-color-scheme: dark" in TEMPLATE
    assert "http" not in TEMPLATE
    settings = configuration(1, "token", tmp_path)
    policy = settings["Voila"]["tornado_settings"]["headers"]["Content-Security-Policy"]
    assert "http" not in policy
    (cell,) = notebook(tmp_path, "smoke").cells
    assert "confined=True" in cell.source
