"""Tables as a notebook shows them: whole sentences, no row numbers, short numbers."""

from __future__ import annotations

import pandas as pd


class Shown(pd.DataFrame):
    """A data frame like any other, which shows all of its text."""

    @property
    def _constructor(self) -> type[Shown]:
        return Shown

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None, "display.max_rows", None):
            return self.to_html(index=False, na_rep="", border=0, float_format="{:.4g}".format)
