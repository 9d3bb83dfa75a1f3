"""Varuna while hosts come and go: a trace of availability, replayed on a real job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.core.model_spec import ModelSpec
from workbench.core.record import RunRecord
from workbench.core.sealed import parse_sealed
from workbench.core.spec import RunSpec
from workbench.exhibits.metrics import Asked, Found, by_name
from workbench.exhibits.opened import Opened
from workbench.exhibits.preview import cached
from workbench.exhibits.varuna.base import VarunaExhibit
from workbench.figures import draw as drawing
from workbench.figures.rows import MEASURED, hardware_of, pick
from workbench.figures.style import GREY, LOOKS
from workbench.methods.varuna.replay.job import ALONE, EDITS, JOB, LOSSES, TAIL
from workbench.published.tables import FOLDER
from workbench.runs.store import Store

LARGEST = 16
"""GPUs of the trace at its best."""
PARTS = {"tiny": (2, 6000, 700), "smoke": (4, 60, 1764)}
"""Hosts for the trace's 16 GPUs, how many times as fast, and until which second; other sizes
replay all of it tenfold, on the GPUs that are there."""
LIST, STEP, ALONE_STEP, ROUND = "hosts", "step", "undisturbed step", "round"
"""Quantities: hosts on the list, losses of steps, and rounds with their samples/s."""
BINS = 80
"""Of the time."""


def trace(hosts: int, speed: float, until: float) -> str:
    """Changes of the published trace as an option, with so many hosts for its 16 GPUs."""
    told = pd.read_csv(FOLDER / "varuna_trace.csv")
    there = (told["gpus"] * hosts // LARGEST).clip(lower=1)
    told = told.assign(hosts=there)[(told["time_s"] <= until) & (there != there.shift())]
    return " ".join(f"{row.time_s / speed:g}:{row.hosts}" for row in told.itertuples())


def once(asked: Asked) -> float | None:
    """Number that tells whether the job made each step once and in order: 1 or 0."""
    losses, wanted = _losses(asked)
    return float([*losses.index] == [*range(1, len(wanted) + 1)]) if len(losses) else None


def near_losses(asked: Asked) -> float | None:
    """The share of steps whose losses are near the undisturbed run's."""
    if not (whole := once(asked)):
        return whole
    losses, wanted = _losses(asked)
    off = losses.to_numpy() / wanted.to_numpy() - 1.0
    return float((abs(off) <= asked.given["near"]).mean())


def followed(asked: Asked) -> Found:
    """The share of changes after which a round began on all hosts."""
    hosts, rounds, *_ = _parts(asked.rows)
    waits, left = [], [*zip(rounds["x"], rounds["ranks"], strict=True)]
    for change in hosts.iloc[1:].itertuples():
        while left and (left[0][0] < change.x or left[0][1] != change.value):
            left.pop(0)
        waits += [f"{at - change.x:.1f}" for at, _ in left[:1]]
    share = len(waits) / (len(hosts) - 1) if len(hosts) > 1 else None
    return Found(share, why=f"their first steps came after {', '.join(waits)} s")


def _losses(asked: Asked) -> list[pd.Series]:
    """The job's and the undisturbed run's, by step."""
    return [
        pick(asked.rows, quantity=name).set_index("step")["value"] for name in (STEP, ALONE_STEP)
    ]


class Morphing(VarunaExhibit):
    """A job's shapes, speed and losses, beside an undisturbed run."""

    metrics = by_name(near_losses, once, followed)

    def specs(self, size: Any) -> list[RunSpec]:
        """One job; a host is a GPU, or a process."""
        small = size.device == "cpu"
        hosts, *part = PARTS.get(size.name, (max(1, size.devices), 10, float("inf")))
        names, values = ("layers", "hidden", "batch"), (3, 64, 12) if small else (12, 512, 48)
        given = dict(zip(names, values, strict=True)) | size.given
        shape = {"layers": given.pop("layers"), "hidden": given.pop("hidden"), "heads": 4}
        model = ModelSpec(**shape, seq=32 if small else 256, vocab=256, dropout=0.0)
        about = {"method": "varuna-replay", "model": model, "microbatches": 12, **given}
        more = {"ranks": hosts, "device": size.device, "eps": 1e-6, "steps": 100_000}
        return [RunSpec.of(**about, **more, trace=trace(hosts, *part))]

    def preview(self, at: Opened) -> pd.DataFrame:
        """The trace's own time is known, and no more."""
        if at.simulated:
            return super().preview(at)
        (point,) = next(self.stages(at)).points
        changes = point.spec.options.changes()
        state = cached(point.record) if point.record is not None else "to run"
        told = {"run": "a job, then undisturbed", "state": state, "hosts": point.spec.ranks}
        return pd.DataFrame([told | {"changes": len(changes) - 1, "over (s)": changes[-1][0]}])

    def table(self, at: Opened, records: list[RunRecord]) -> pd.DataFrame:
        rows = [row for record in records for row in _ran(record, at.store)]
        none = {"quantity": ROUND, "source": MEASURED, "status": self.unmeasured(at)}
        rows = rows or [none]
        return self.tabled(
            at, rows, "quantity", "step", "seconds", "ranks", "minibatch", method="varuna"
        )

    def listed(self, rows: pd.DataFrame) -> pd.DataFrame:
        return super().listed(rows[rows["quantity"].isin([LIST, ROUND])])

    def draw(self, figure: Any, rows: pd.DataFrame) -> None:
        """Hosts, speed and shape over time; losses by step."""
        drawing.prepare(figure, 2.1)
        top, middle, bottom = figure.subplots(3, 1, height_ratios=(0.6, 1, 1))
        hosts, rounds, steps, alone = _parts(rows)
        if steps.empty:
            for axes in (top, middle, bottom):
                drawing.empty(axes, drawing.missing_words(rows["status"].iloc[0]), 110)
            return
        colour, end = LOOKS["varuna"].color, float(steps["x"].max())
        there = [*hosts["value"], hosts["value"].iloc[-1]]
        top.step([*hosts["x"], end], there, color=GREY, where="post")
        top.set(ylabel="hosts", ylim=(0, max(there) + 0.6), yticks=range(int(max(there)) + 1))
        drawing.title(top, "hosts (GPUs, or processes) on the machine list")
        width = end / BINS
        done = steps.groupby((steps["x"] // width).clip(upper=BINS - 1))["minibatch"].sum()
        speed = done.reindex(range(BINS), fill_value=0) / width
        edges = [width * edge for edge in range(BINS + 1)]
        middle.stairs(speed, edges, color=colour, fill=True)
        for each in rounds.itertuples():
            middle.axvspan(each.x - each.seconds, each.x, color=GREY, alpha=0.25, lw=0)
            middle.text(each.x, speed.max() * 1.08, f" {each.pair}", fontsize=7)
        middle.set(ylabel="samples/s", ylim=(0, speed.max() * 1.3), xlabel="s from the first step")
        drawing.title(middle, "speed, and each round's stages x replicas; grey: morphs")
        for axes in (top, middle):
            axes.set_xlim(0, end * 1.06)
        bottom.plot(alone["step"], alone["value"], color="#BBBBBB", lw=3, label="undisturbed")
        bottom.plot(steps["step"], steps["value"], color=colour, lw=0.7, label="the job")
        for step in rounds["step"].iloc[1:]:
            bottom.axvline(step, color=GREY, lw=0.8, ls=":")
        bottom.set(xlabel="step", ylabel="loss")
        bottom.legend(fontsize=6)
        drawing.title(bottom, "loss by step; dotted: a new shape")
        facts = {"hosts": hosts["value"].max(), "largest": LARGEST, "tail": TAIL}
        drawing.small_print(figure, self.printed(**facts))


def _parts(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    return (pick(rows, quantity=name) for name in (LIST, ROUND, STEP, ALONE_STEP))


def _ran(record: RunRecord, store: Store) -> Iterator[dict[str, Any]]:
    """Rows of a job, or why there are none."""
    about = {
        "label": "Varuna", "source": MEASURED, "key": record.key, "status": record.status,
        "hardware": hardware_of(record), "device": record.spec["device"], "note": record.message,
    }  # fmt: skip
    folder, batch = store.folder(record.key) / JOB, record.spec["batch"]
    try:
        edits, job, alone = (
            pd.DataFrame(
                parse_sealed(line, name) for line in (folder / name).read_bytes().splitlines(True)
            )
            for name in (EDITS, LOSSES, ALONE)
        )
        began, ranks = job["at"].iloc[0], job["stages"] * job["replicas"]
    except (OSError, ValueError, KeyError, IndexError) as error:
        why = f"its files are not usable: {error}" if record.status == "ok" else record.status
        yield about | {"quantity": ROUND, "status": why}
        return
    for edit in edits.itertuples():
        at = max(0.0, edit.at - began)
        yield about | {"quantity": LIST, "x": at, "value": edit.hosts, "unit": "hosts"}
    for quantity, lines in ((STEP, job), (ALONE_STEP, alone)):
        for line in lines.itertuples():
            here = {"quantity": quantity, "x": line.at - began, "step": line.step}
            yield about | here | {"value": line.loss, "unit": "loss", "minibatch": batch}
    job["waited"] = job["at"].diff().fillna(0.0)
    for _, part in job.groupby((job["stages"].diff().ne(0) | ranks.diff().ne(0)).cumsum()):
        first, seconds = part.iloc[0], part["seconds"].median()
        yield about | {
            "quantity": ROUND, "x": first["at"] - began, "step": first["step"],
            "pair": f"{first['stages']:g} x {first['replicas']:g}", "ranks": ranks[part.index[0]],
            "value": batch / seconds, "unit": "samples/s", "seconds": first["waited"],
            "how": f"median of {len(part)} steps",
        }  # fmt: skip
