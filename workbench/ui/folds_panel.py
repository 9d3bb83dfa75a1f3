"""Parts of a page under headings, at most one of them open.

    folds = Folds([some, other], titles=["Some", "Other"])
    folds.selected_index = 1

The library's own accordion cannot be reached by keyboard, and a screen reader takes its headings
for text; these headings are buttons that say whether they are open.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anywidget
import ipywidgets as widgets
import traitlets

HERE = Path(__file__).parent


class FoldHead(anywidget.AnyWidget):
    """A heading that opens and closes what is below it."""

    _esm = HERE / "folds_head.js"
    _css = HERE / "folds_head.css"
    title = traitlets.Unicode().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)
    """How it stands with the part, at the end of the line."""
    opened = traitlets.Bool(False).tag(sync=True)


class Folds(widgets.VBox):
    """Headings and what they hide, from top to bottom."""

    selected_index = traitlets.Int(None, allow_none=True)
    """Index of the open fold; None for none. Raises TraitError past the last."""

    def __init__(self, parts: Sequence[widgets.Widget], *, titles: Sequence[str]) -> None:
        """As many titles as parts; all closed."""
        self.heads = [FoldHead(title=title) for title in titles]
        self.bodies = [widgets.VBox([part], layout={"display": "none"}) for part in parts]
        for body in self.bodies:
            body.add_class("wb-fold-body")
        pairs = zip(self.heads, self.bodies, strict=True)
        super().__init__([widget for pair in pairs for widget in pair])
        for index, head in enumerate(self.heads):
            head.observe(lambda change, index=index: self._turned(index, change["new"]), "opened")

    @traitlets.validate("selected_index")
    def _known(self, proposal: traitlets.Bunch) -> int | None:
        index = proposal["value"]
        if index is not None and not 0 <= index < len(self.heads):
            raise traitlets.TraitError(f"part {index} of {len(self.heads)} cannot be opened")
        return index

    @traitlets.observe("selected_index")
    def _selected(self, change: traitlets.Bunch) -> None:
        for index, (head, body) in enumerate(zip(self.heads, self.bodies, strict=True)):
            head.opened = index == change["new"]
            body.layout.display = None if head.opened else "none"

    def _turned(self, index: int, opened: bool) -> None:
        """By hand, or because another was opened."""
        if opened:
            self.selected_index = index
        elif self.selected_index == index:
            self.selected_index = None
