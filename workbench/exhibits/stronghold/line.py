"""Base of STRONGHOLD's figures 8b and 9: STRONGHOLD's time per iteration as a line over a
number."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import pandas as pd

from workbench.exhibits.stronghold.base import StrongholdExhibit
from workbench.figures import draw as drawing


class Line(StrongholdExhibit):
    """A line over x, and beside it over its own first point."""

    quantity, rowwise = "ms", True
    over: ClassVar[tuple[str, str]]
    """Names of the axes, x and y."""
    over_first: ClassVar[tuple[str, str]]
    """Names of the axes of the ratios."""

    @abstractmethod
    def relative(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Each series over its own first point."""

    def absolute(self, axes: Any, rows: pd.DataFrame) -> None:
        drawing.lines(axes, rows, *self.over)

    def ratios(self, axes: Any, rows: pd.DataFrame) -> None:
        drawing.lines(axes, self.relative(rows), *self.over_first)

    def legend(self, figure: Any, rows: pd.DataFrame) -> None:
        drawing.legend(figure, rows, as_lines=True, methods=False)
