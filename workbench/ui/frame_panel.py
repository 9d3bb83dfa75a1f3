"""Frame of every panel: it keeps keys to itself, a page that opens misses nothing, and a pressed
button is heard between two ticks of a timer and not in one (one_loop.py).

A notebook takes plain keys for commands on its cells wherever no text is written: an arrow in a
list of choices would leave the list, Enter on a button would edit the cell, and two d would delete
it.

A page that opens on a kernel asks for the state of all widgets first and listens to changes then.
What changes between the two it would never hear of, so that a picture that was drawn in that
moment would stay away. So the frame tells the kernel when it is shown, and hears everything again.

A panel whose kernel or server has ended looks as alive as before. So the frame asks the kernel all
the time whether it is there, and without an answer says so and switches the panel's buttons off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets

from workbench.ui import html
from workbench.ui.one_loop import handle_messages_here

BEAT = "there?"
"""Message of the frame that the kernel sends back."""


class Frame(anywidget.AnyWidget):
    """Not seen. Plain keys that are pressed inside the panel around it do not leave the panel; it
    sends a message whenever it is shown, and others to which it wants an answer."""

    _esm = Path(__file__).parent / "frame.js"


def framed(parts: Sequence[widgets.Widget]) -> widgets.VBox:
    """The outermost widget of a panel, with its parts from top to bottom."""
    handle_messages_here()
    frame = Frame()
    made = widgets.VBox([*parts, frame])
    made.add_class(html.PANEL)
    frame.on_msg(lambda _, said, __: frame.send(said) if said == BEAT else send_again(made))
    return made


def button(words: str, tooltip: str, click: Callable[[], None]) -> widgets.Button:
    """A button that says what it does."""
    made = widgets.Button(description=words, tooltip=tooltip, layout={"width": "auto"})
    made.on_click(lambda _: click())
    return made


def checkbox(words: str, tooltip: str) -> widgets.Checkbox:
    """A box to tick, with its words behind it."""
    return widgets.Checkbox(
        value=False, description=words, tooltip=tooltip, indent=False, layout={"width": "auto"}
    )


def dropdown(
    words: str,
    tooltip: str,
    options: Sequence[Any],
    changed: Callable[[], None] = lambda: None,
    **look: Any,
) -> widgets.Dropdown:
    """A list to choose from, behind its words; `changed` is called after each choice."""
    made = widgets.Dropdown(options=options, description=words, tooltip=tooltip, **look)
    made.observe(lambda _: changed(), "value")
    return made


def send_again(widget: widgets.Widget) -> None:
    """Send the state of a widget and of all in it. What starts with an underscore says how a widget
    is shown, not what it shows, and never changes."""
    widget.send_state([name for name in widget.keys if not name.startswith("_")])
    for child in getattr(widget, "children", ()):
        send_again(child)
