"""A picture that the helper process draws: by matplotlib, or by plotly where it is installed, to
point at. While one is made, only the newest wish for another is kept."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from workbench.ui import html
from workbench.ui.helper_process import Answer, HelperProcess
from workbench.ui.runs_table_html import card

WORK = "workbench.ui.runs_table_work"
PLOTLY = find_spec("plotly")
"""Found and not imported: its script is what the page needs."""


@lru_cache(maxsize=1)
def pointed_widget() -> type[anywidget.AnyWidget]:
    """The class of plots to point at; its script of 5 MB is read when the first is wanted."""
    script = Path(PLOTLY.submodule_search_locations[0], "package_data", "plotly.min.js")
    mine = Path(__file__).with_name("runs_pointed.js")

    class Pointed(anywidget.AnyWidget):
        _esm = (
            "const module = { exports: {} }, exports = module.exports;\n"
            f"{script.read_text(encoding='utf-8')}\n{mine.read_text()}"
        )
        figure = traitlets.Dict().tag(sync=True)
        words = traitlets.Unicode().tag(sync=True)

    return Pointed


class Picture:
    """The picture and its words. `tick` it again and again."""

    def __init__(self, helper: HelperProcess) -> None:
        self._helper = helper
        self._wish: dict[str, Any] | None = None
        self._answer: Answer | None = None
        self.state = widgets.HTML(html.told(""))
        self.image = widgets.HTML()
        self.widget = widgets.VBox([self.state, self.image])

    @property
    def settled(self) -> bool:
        return self._answer is None and self._wish is None

    def want(self, function: str, **arguments: Any) -> None:
        """Show the picture that a function of runs_table_work.py makes."""
        self._wish = {"function": f"{WORK}:{function}", **arguments}

    def clear(self) -> None:
        """Show nothing."""
        self._wish = self._answer = None
        self.state.value, self.image.value = html.told(""), ""
        self.widget.children = [self.state, self.image]

    def tick(self) -> None:
        """Show what was drawn, and draw what is wanted. Never waits."""
        if self._answer is not None and self._answer.done:
            answer, self._answer = self._answer, None
            words = answer.error or answer.value["words"]
            self.state.value = html.told(words, "bad" if answer.error else "")
            if not answer.error:
                self._show(answer.value)
        if self._answer is None and self._wish is not None:
            self._answer, self._wish = self._helper.ask(**self._wish), None

    def _show(self, told: dict[str, Any]) -> None:
        if "png" in told:
            self.image.value = card(told["png"], told["words"])
            self.widget.children = [self.state, self.image]
        elif self.widget.children[-1] is self.image:
            made = pointed_widget()(figure=told["plotly"], words=told["words"])
            self.widget.children = [self.state, made]
        else:
            self.widget.children[-1].set_trait("words", told["words"])
            self.widget.children[-1].set_trait("figure", told["plotly"])
