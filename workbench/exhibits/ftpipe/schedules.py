"""Orders of passes that never drain: their strings, their staleness, the inputs that they hold, a
chart of them, and epochs beside GPipe's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.record import RunRecord
from workbench.exhibits.chart import draw_chart
from workbench.exhibits.ftpipe import simulated
from workbench.exhibits.ftpipe.base import DEVICES, MIXED, FtpipeExhibit, cut, told
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.figures import draw as drawing
from workbench.figures.rows import PUBLISHED, SIMULATED, pick
from workbench.figures.style import GREY, LOOKS, bar_look, lighter
from workbench.methods.ftpipe import orders
from workbench.methods.pipeline.orders import B, F
from workbench.schedule.looks import LOOKS as PASSES

STRING, EPOCH = "string", "epoch"


def published_strings(asked: Asked) -> Found:
    """The share of published strings that are ours."""
    listed = pick(asked.rows, quantity=STRING)["sound"]
    return Found(float(listed.mean()), names={"count": len(listed)})


def closed_form(asked: Asked) -> float:
    """The share of stages whose staleness is ceil(d / k)."""
    part = pick(asked.rows, quantity=simulated.STALE)
    return float((part["value"] == -(-part["x"] // part["window"])).mean())


def longer(asked: Asked) -> float | None:
    """How many times as long an epoch takes."""
    return asked.value(asked.claim.where)


class Schedules(FtpipeExhibit):
    """A chart; staleness, inputs and simulated."""

    metrics = by_name(published_strings, closed_form, longer)

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        own = self.published()
        rows = [*map(_string, own[own["metric"] == STRING].itertuples())]
        rows += [
            *simulated.by_stage(at.size.stages),
            *simulated.chart(),
            *_epochs(own[own["metric"] == "ratio"]),
        ]
        return self.tabled(
            at, rows, "quantity", "rank", "kind", "micro", "start", "end", status="ok"
        )

    def listed(self, rows: pd.DataFrame) -> pd.DataFrame:
        return super().listed(rows[rows["quantity"] != simulated.PASS])

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """The chart above, the others below."""
        drawing.prepare(figure, 1.75)
        grid = figure.add_gridspec(2, 3, height_ratios=(0.8, 1), width_ratios=(1, 1, 1.6))
        chart = figure.add_subplot(grid[0, :])
        passes = pick(rows, quantity=simulated.PASS)
        draw_chart(chart, passes, passes["end"].max(), row="stage", letters=False)
        chart.set_xlabel("time (quanta)")
        drawing.title(chart, f"{simulated.ORDER}, two micro-batches an update, until it drains")
        left, middle, right = (figure.add_subplot(grid[1, at]) for at in range(3))
        for axes, quantity, words in (
            (left, simulated.STALE, "updates lacked"),
            (middle, simulated.HELD, "inputs"),
        ):
            parts = pick(rows, quantity=quantity).groupby("label", sort=False)
            for dash, (label, part) in zip(("--", "-.", ":"), parts, strict=True):
                tone = LOOKS[simulated.METHODS[part["pair"].iloc[0]]].color
                if quantity == simulated.STALE:
                    tone = lighter(tone, 1 - 0.3 * simulated.EVERY.index(part["window"].iloc[0]))
                axes.plot(part["x"], part["value"], dash, drawstyle="steps-mid", color=tone, lw=1.1,
                          label=label)  # fmt: skip
            axes.set(xlabel="stages behind", ylabel=words)
            axes.legend(fontsize=5.5)
        drawing.title(left, "staleness: simulated")
        drawing.title(middle, "inputs held: simulated")
        told = pick(rows, quantity=EPOCH)
        groups = {pair: pair.replace(": ", ":\n") for pair in dict.fromkeys(told["pair"])}
        groups = {pair: words.replace(" / ", " /\n") for pair, words in groups.items()}
        drawing.bars(right, told, groups, "times as long", column="pair", number="{:.2f}")
        drawing.title(right, "epochs, and the slowest stage")
        keys = [(drawing.patch(color=PASSES[k].color), PASSES[k].words) for k in (F, B)]
        keys += [(drawing.patch(**bar_look(GREY, of)), of) for of in (PUBLISHED, SIMULATED)]
        drawing.place_legend(figure, keys)
        stages = len(cut("BoolQ", False, MIXED).stage_to_device)
        drawing.small_print(figure, self.printed(devices=DEVICES, stages=stages))


def _string(row: Any) -> dict[str, Any]:
    """A published string (`note`), and whether ours is equal (`sound`)."""
    made = orders.passes(row.variant, int(row.item), simulated.MICROS, simulated.TOGETHER)
    about = {"quantity": STRING, "label": f"{row.variant}, {row.item} stages behind"}
    about |= {"method": simulated.METHODS[row.variant], "source": SIMULATED, "how": row.source}
    return about | {"note": row.value, "sound": orders.string(made) == row.value}


def _epochs(ratios: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Published ratios of epochs, and simulated ones."""
    for row in ratios[ratios["note"] != "per-epoch speed-up stated in a comment"].itertuples():
        task = row.item.removeprefix("T5-3B ")
        words = "contiguous / mixed" if "over seq" in row.variant else "GPipe / async"
        pair = f"{task}: {words}"
        yield told(row, quantity=EPOCH, method="ftpipe", label=pair, pair=pair)
    for task, words, value in simulated.ratios():
        yield {
            "quantity": EPOCH, "method": "ftpipe", "label": f"{task}: {words}", "value": value,
            "pair": f"{task}: {words}", "source": SIMULATED, "how": "counted operations",
        }  # fmt: skip
