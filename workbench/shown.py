"""Tables as a notebook shows them: whole sentences, no row numbers, short numbers; and parameters
that it was given in vain."""

from __future__ import annotations

import re
import sys

import pandas as pd


class Shown(pd.DataFrame):
    """A data frame like any other, which shows all of its text."""

    @property
    def _constructor(self) -> type[Shown]:
        return Shown

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None, "display.max_rows", None):
            return self.to_html(index=False, na_rep="", border=0, float_format="{:.4g}".format)


def unknown_injected() -> list[str]:
    """Parameters that papermill gave this notebook and its parameters cell does not have (papermill
    only warns); none outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    cells = shell.user_ns.get("In", []) if shell else []
    pairs = zip(cells, cells[1:], strict=False)
    given = next((pair for pair in pairs if pair[1].startswith("# Parameters\n")), ("", ""))
    own, injected = (re.findall(r"^(\w+)\s*[:=]", cell, re.MULTILINE) for cell in given)
    return [name for name in injected if name not in own]
