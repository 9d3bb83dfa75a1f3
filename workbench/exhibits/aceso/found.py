"""Rows of plans that searches find for a published setting, on any database of profiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from workbench.exhibits.aceso.base import ACESO, FOUND, KINDS, NAMES, core
from workbench.figures.rows import MEASURED, SIMULATED
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.searches import Outcome
from workbench.methods.aceso.settings import Setting, searched

COST, RATE, TIME, MEMORY = "search_cost", "throughput", "iteration_time", "memory"
NORMAL, EXTRA = "predict (norm)", "predict (extra)"
PREDICTED, ACTUAL = "predict", "actual here"
FOLDER = "aceso"
"""Of kept searches, among results."""
SEARCHED = ("alpa", "aceso", "ours")
"""Ways of which the artifact's tables have a search's seconds; its grid takes none."""


def found_rows(
    settings: Iterable[Setting], database: str | Path, effort: Effort, folder: Path
) -> Iterator[dict[str, Any]]:
    """Rows of every search of every setting; one where the database has no profiles, which says
    what is missing."""
    for setting in settings:
        about = {"pair": f"{setting.model} {setting.size}", "x": setting.gpus,
                 "layers": setting.layers, "column": setting.column}  # fmt: skip
        try:
            outcomes = {
                way: searched(setting, way, database, effort, folder) for way in setting.ways
            }
        except ValueError as error:
            yield about | _of("aceso") | {
                "quantity": RATE, "unit": "samples/s", "status": "no profiles", "how": str(error),
                "note": str(error), "source": SIMULATED,
            }  # fmt: skip
            continue
        for way, outcome in outcomes.items():
            for row in _rows(way, outcome):
                yield about | row


def _of(way: str) -> dict[str, Any]:
    return {"method": KINDS[way], "label": NAMES[KINDS[way]]}


def _rows(way: str, outcome: Outcome) -> Iterator[dict[str, Any]]:
    own = _of(way) | {"source": SIMULATED, "how": FOUND, "status": "nothing fits"}
    if way in SEARCHED:
        yield own | {
            "quantity": COST, "unit": "s", "value": outcome.cpu_seconds, "status": "ok",
            "source": MEASURED, "hardware": core(), "how": "seconds of one core",
        }  # fmt: skip
    rate = own | {"quantity": RATE, "unit": "samples/s"}
    if not outcome.fits:
        yield rate
        return
    plan, cost = outcome.chosen()
    own |= {"status": "ok", "note": f"{len(plan.stages)} stages, micro-batches of {plan.micro}"}
    yield rate | own | {"value": plan.subject.batch / cost.time * 1000}
    fullest = max(cost.stages, key=lambda stage: stage.memory)
    values = [(TIME, "ms", PREDICTED, cost.time), (MEMORY, "MB", NORMAL, fullest.normal),
              (MEMORY, "MB", EXTRA, fullest.reserved)]  # fmt: skip
    for quantity, unit, label, value in values if KINDS[way] == ACESO else ():
        yield own | {"quantity": quantity, "unit": unit, "label": label, "value": value}
