"""What every panel is put in: it shows where the keyboard is, and keeps keys to itself.

A notebook takes plain keys for commands on its cells wherever no text is written: an arrow in a
list of choices would leave the list, Enter on a button would edit the cell, and two d would delete
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anywidget
import ipywidgets as widgets

from workbench.ui import html


class Keys(anywidget.AnyWidget):
    """Not seen. Plain keys that are pressed inside the panel around it do not leave the panel."""

    _esm = Path(__file__).parent / "frame_keys.js"


def framed(parts: Sequence[widgets.Widget]) -> widgets.VBox:
    """The outermost widget of a panel, with its parts from top to bottom."""
    made = widgets.VBox([*parts, Keys()])
    made.add_class(html.PANEL)
    return made
