"""Base of STRONGHOLD's exhibits: published values beside simulations and runs, claims as
ratios.

Values of one machine share axes; those of another have axes of their own, since a GPU of 2023 would
flatten one of 2018. What compares machines is a panel of ratios. Of the rows that this project
measured on named hardware, each says how its run was set up (`measured_here`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from workbench.core.methods import METHODS
from workbench.core.record import RunRecord
from workbench.exhibits.base import Exhibit
from workbench.exhibits.metrics import Asked, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.stronghold import measured_here, sizes
from workbench.figures import draw as drawing
from workbench.figures import rows as tidy
from workbench.figures.rows import HERE
from workbench.figures.style import COLUMN_IN, PAGE_IN, name_of
from workbench.figures.verdict import no_speed_of, series_to_judge
from workbench.published.here import OFFLOAD

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def advantage(asked: Asked) -> float | None:
    """STRONGHOLD's value over that of the `given` method."""
    return tidy.advantage(asked.rows, *asked.series, over=asked.given["method"])


class StrongholdExhibit(Exhibit):
    """A figure of the paper; its rows are `specs`' runs, a method or a line over x each."""

    dials = staticmethod(sizes.named)
    quantity: ClassVar[str]
    """Quantity of its rows (`tidy.UNITS`)."""
    unknown_size: ClassVar[str]
    """Words for sizes other than the paper's."""
    rowwise: ClassVar[bool] = False
    """Whether three panels stand side by side, instead of the ratios below the others."""
    together: ClassVar[bool] = False
    """Whether values of all machines share the axes at the paper's size."""
    wide: ClassVar[bool] = False
    """Whether it takes a page's width also at the paper's size."""
    metrics = by_name(advantage)

    def x_of(self, record: RunRecord) -> float | None:
        """Where a record's value lies on the x axis; None for bars."""
        return None

    # -- rows -----------------------------------------------------------------------------------

    def nothing_runs(self, at: Opened) -> dict[str, str]:
        told = {"run": "simulation", "state": "simulated", "note": self.about}
        return dict.fromkeys(self.previewed, "") | told

    def machines(self, at: Opened) -> set[str]:
        """Folders with runs of the published model; at sizes with other models there are none."""
        fit = measured_here.of_published_model(OFFLOAD.runs(at.roots()))
        return {run.device for run in fit} if at.size.name == "paper" else set()

    def rows(self, records: list[RunRecord]) -> pd.DataFrame:
        """Measured and predicted values of these runs."""
        return tidy.table(
            [
                row
                for record in records
                for row in tidy.both(record, self.quantity, x=self.x_of(record))
            ]
        )

    def published(self) -> pd.DataFrame:
        return tidy.published(self.figure)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        """Published values, simulations of the published machine, and what the records say."""
        figure, size = self.figure, at.size.name
        parts = [self.published()]
        if size == "paper":
            parts.append(measured_here.rows(figure, OFFLOAD.runs(at.roots()), at.machine))
            parts.append(tidy.simulated(figure))
            parts.append(tidy.kept_here(at.store.published_here(), figure, size))
        if records:
            parts.append(self.rows(records).assign(figure=figure, size=size))
        return tidy.join(*parts)

    def listed(self, rows: pd.DataFrame) -> pd.DataFrame:
        spread = [
            "" if pd.isna(low) else f"{low:.4g} to {high:.4g}"
            for low, high in zip(rows["low"], rows["high"], strict=True)
        ]
        named = [name_of(row.source, row.variant, row.hardware) for row in rows.itertuples()]
        return super().listed(rows.assign(spread=spread, named=named))

    # -- drawing --------------------------------------------------------------------------------

    def width_in(self, at: Opened) -> float:
        return PAGE_IN if at.size.name != "paper" or self.wide else COLUMN_IN

    def paint(self, at: Opened, figure: Figure, rows: pd.DataFrame) -> None:
        self.draw(figure, rows, same_scale=at.size.name == "paper", overlay=at.overlay)

    @abstractmethod
    def absolute(self, axes: Any, rows: pd.DataFrame) -> None:
        """Draw values of one machine."""

    def ratios(self, axes: Any, rows: pd.DataFrame) -> None:
        """Draw what may be compared between machines: methods beside Megatron-LM."""
        part, names = drawing.relative_to_method(rows, "megatron-lm"), drawing.names_of(METHODS)
        drawing.bars(axes, part, names, "relative to Megatron-LM", number="{:.2f}")

    def draw(
        self, figure: Figure, rows: pd.DataFrame, *, same_scale: bool = True, overlay: bool = False
    ) -> None:
        """One panel where all is of one machine, or laid over each other (`overlay`), else absolute
        values beside ratios. `same_scale`: the rows have the published size."""
        if same_scale and (overlay or self.together or not _of_here(rows).any()):
            self.absolute(figure.subplots(), rows)
        else:
            self._panels(figure, rows, same_scale=same_scale)
        self.legend(figure, rows)
        notes = [*drawing.daggers(rows), *notes_of_measured(rows)]
        drawing.small_print(figure, self.printed(), *notes)

    def legend(self, figure: Figure, rows: pd.DataFrame) -> None:
        """Say above the axes what the marks are."""
        drawing.legend(figure, rows, methods=False)

    def _panels(self, figure: Figure, rows: pd.DataFrame, *, same_scale: bool) -> None:
        if not same_scale:
            left, right = figure.subplots(1, 2)
            self.absolute(left, rows[rows["source"] != "published"])
            left.set_title(f"this machine, {self.unknown_size}")
        else:
            of_here, scale = _of_here(rows), 1.15 if self.rowwise else 2
            figure.set_size_inches(PAGE_IN, figure.get_figheight() * scale)
            sides = ["there", "here"]
            axes = figure.subplot_mosaic(
                [[*sides, "ratios"]] if self.rowwise else [sides, ["ratios"] * 2]
            )
            self.absolute(axes["there"], rows[~of_here])
            axes["there"].set_title(_machine(rows[~of_here], "the published machine"))
            self.absolute(axes["here"], rows[of_here])
            axes["here"].set_title(_machine(rows[of_here], "measured here"))
            right = axes["ratios"]
        self.ratios(right, drawing.compared(rows))
        narrow = same_scale and self.rowwise
        right.set_title("as ratios" if narrow else "as ratios, beside the published ones")

    # -- verdicts -------------------------------------------------------------------------------

    def cannot_tell(self, asked: Asked) -> str:
        """Libraries that nobody slows down tell nothing without a GPU."""
        return no_speed_of(asked.rows, asked.series[0], asked.given.get("method", ""))

    def judged_by(self, rows: pd.DataFrame) -> Iterable[tuple[pd.DataFrame, tuple[str, ...]]]:
        return [(rows, series) for series in series_to_judge(rows)]


def _of_here(rows: pd.DataFrame) -> pd.Series:
    """Whether each row is of a run on this project's machines, or was predicted of one."""
    return (rows["source"] == "measured") | (rows["variant"] == HERE)


def _machine(rows: pd.DataFrame, otherwise: str) -> str:
    """The device of these rows, if it is one, without cores and dates."""
    names = {text.split(",")[0] for text in rows["hardware"] if text}
    return f"on {names.pop()}" if len(names) == 1 else otherwise


def notes_of_measured(rows: pd.DataFrame) -> list[str]:
    """How the runs measured on named hardware were set up and where the published ones were not, a
    sentence a series: what most of its rows have, then what single methods have of their own."""
    out = []
    for source, variant in drawing.series_of(rows):
        if source != "measured" or not variant:
            continue
        part = drawing.part_of(rows, source, variant)
        told = [text.split("; ") for text in part["note"]]
        times = Counter(words for each in told for words in each if words)
        shared = [words for words, n in times.items() if n > len(part) / 2]
        sentence = f"Measured on {part['hardware'].iloc[0]}: {'; '.join(shared)}."
        for label in dict.fromkeys(part["label"]):
            own = dict.fromkeys(
                words
                for name, each in zip(part["label"], told, strict=True)
                for words in each
                if name == label and words in times and words not in shared
            )
            if own:
                sentence += f" {label}: {'; '.join(own)}."
        out.append(sentence)
    return out
