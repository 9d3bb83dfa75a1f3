"""Parts under headings: one open at a time, by hand as from code, and never only by mouse."""

from __future__ import annotations

import ipywidgets as widgets
import pytest
import traitlets

from workbench.ui import html
from workbench.ui.folds_panel import Folds
from workbench.ui.frame_panel import BEAT, Frame, framed


@pytest.fixture
def folds() -> Folds:
    return Folds([widgets.Text(), widgets.Text()], titles=["first", "second"])


def opened(folds: Folds) -> list[int]:
    """Which are seen; a heading says the same as what is below it."""
    seen = [n for n, body in enumerate(folds.bodies) if body.layout.display != "none"]
    assert seen == [n for n, head in enumerate(folds.heads) if head.opened]
    return seen


def test_one_is_open_at_a_time(folds: Folds) -> None:
    assert opened(folds) == []
    folds.heads[0].opened = True  # as a click does
    assert (opened(folds), folds.selected_index) == ([0], 0)
    folds.heads[1].opened = True
    assert (opened(folds), folds.selected_index) == ([1], 1)
    folds.heads[1].opened = False
    assert (opened(folds), folds.selected_index) == ([], None)


def test_who_opens_one_from_code_tells_the_same(folds: Folds) -> None:
    seen = []
    folds.observe(lambda change: seen.append(change["new"]), "selected_index")
    folds.selected_index = 1
    assert opened(folds) == [1]
    folds.heads[0].opened = True
    assert seen == [1, 0]
    with pytest.raises(traitlets.TraitError, match="part 2 of 2 cannot be opened"):
        folds.selected_index = 2
    assert opened(folds) == [0]


def test_as_many_titles_as_parts() -> None:
    with pytest.raises(ValueError, match="zip"):
        Folds([widgets.Text()], titles=["one", "too many"])


def test_a_panel_shows_the_focus_and_keeps_its_keys() -> None:
    panel = framed([widgets.Text()])
    assert html.PANEL in panel._dom_classes
    field, keys = panel.children
    assert isinstance(field, widgets.Text)
    assert isinstance(keys, Frame)
    assert f".{html.PANEL} " in html.STYLE
    assert ":focus-visible" in html.STYLE


def test_a_panel_that_is_shown_hears_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes while the page was being opened have not reached it."""
    inner = widgets.HTML("picture")
    panel = framed([widgets.Box([inner])])
    sent = {}
    monkeypatch.setattr(
        widgets.Widget, "send_state", lambda self, key=None: sent.update({self: set(key)})
    )
    frame = panel.children[-1]
    frame._handle_custom_msg("shown", [])
    assert set(sent) == {panel, panel.children[0], inner, frame}
    assert "value" in sent[inner]
    assert "children" in sent[panel]
    assert not any(name.startswith("_") for names in sent.values() for name in names)


def test_the_frame_is_answered_that_the_kernel_is_there(monkeypatch) -> None:
    panel, sent = framed([]), []
    (frame,) = (child for child in panel.children if isinstance(child, Frame))
    monkeypatch.setattr(Frame, "send", lambda _, said: sent.append(said))
    frame._handle_custom_msg(BEAT, [])
    frame._handle_custom_msg("shown", [])
    assert sent == [BEAT]
