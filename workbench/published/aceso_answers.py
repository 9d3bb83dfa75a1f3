"""Searches of Aceso's published large settings, made on the published profiles.

    python -m workbench.published.aceso_answers FOLDER [large scale]

writes ``aceso_searches.csv`` (`aceso.searches`) again, or the rows of a setting: a quarter of an
hour on one core. FOLDER has the large database of the artifact, of which GPT's files are read;
those of Wide-ResNet and T5 are not at hand.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from workbench.core import host
from workbench.methods.aceso.alpa import layered
from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.grid import grid
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.plan import subject_of
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.searches import Outcome, search
from workbench.methods.aceso.space import Cluster
from workbench.published.aceso import SEARCHES

MEMORY_MB, BATCH, PER_NODE = 28000, 1024, 8
PLANS = 1000
"""Plans that a search rates at most, for each number of stages."""
MARGIN_MB = 1000
"""Memory that recomputation leaves free in the published searches of deep models."""
LARGE = {"350M": 1, "1_3B": 4, "2_6B": 8, "6_7B": 16, "13B": 32}
"""Size of GPT -> devices."""
DEPTHS = (8, 16, 32, 64, 128, 256, 512, 1024)
ALPA_DEPTHS = 64
"""Layers up to which Alpa planned."""


class Question(NamedTuple):
    """A model and its devices, as the published searches had them."""

    setting: str
    size: str
    gpus: int
    layers: int | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Searches that answer it."""
        kinds = ["megatron", "alpa", "faithful", "ours"]
        if self.layers is not None and self.layers > ALPA_DEPTHS:
            kinds.remove("alpa")
        return tuple(kinds)

    def ask(self, folder: Path) -> Ask:
        """The question to a planner. Raises ValueError."""
        nodes = -(-self.gpus // PER_NODE)
        model = "gpt" if self.layers is None else "scale-layer"
        return Ask(
            subject=subject_of(model, self.size, BATCH, layers=self.layers), database=folder,
            cluster=Cluster(nodes=nodes, per_node=self.gpus // nodes, memory=MEMORY_MB),
            margin=MARGIN_MB if self.layers else 0.0,
        )  # fmt: skip


def questions(setting: str) -> Iterator[Question]:
    """Those of a setting: ``large`` or ``scale``."""
    if setting == "large":
        yield from (Question(setting, size, gpus) for size, gpus in LARGE.items())
    else:
        yield from (Question(setting, "scale-layer", 8, layers) for layers in DEPTHS)


def answered(kind: str, ask: Ask, effort: Effort | None = None) -> tuple[Outcome, float]:
    """What a search finds over all numbers of stages, and seconds of one core that it takes."""
    begun = time.process_time()
    space, counts = ask.space(), ask.stages(None, None)
    if kind in ("megatron", "alpa"):
        outcome = {"megatron": grid, "alpa": layered}[kind](space, counts)
    else:
        outcome = Outcome(space=space)
        {"faithful": search, "ours": search_ours}[kind](
            outcome, counts, effort or Effort(), finetunes=ask.subject.model == "resnet"
        )
    return outcome, time.process_time() - begun


def row(question: Question, kind: str, folder: Path) -> dict[str, Any]:
    """A line of the table."""
    outcome, seconds = answered(kind, question.ask(folder), Effort(plans=PLANS))
    plan, cost = outcome.best
    fullest = max(cost.stages, key=lambda stage: stage.memory)
    return {
        "setting": question.setting, "model": "gpt", "size": question.size,
        "layers": plan.subject.layers, "gpus": question.gpus, "search": kind,
        "stages": len(plan.stages), "micro": plan.micro, "fits": outcome.fits,
        "iteration_ms": round(cost.time, 2), "normal_mb": round(fullest.normal, 2),
        "reserved_mb": round(fullest.reserved, 2),
        "explored": sum(found.explored for found in outcome.found.values()),
        "cpu_seconds": round(seconds, 2), "hardware": f"one core of {host.cpu_model()}",
    }  # fmt: skip


def main() -> None:
    """Write the table again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", nargs="*", default=["large", "scale"])
    given = parser.parse_args()
    kept = pd.read_csv(SEARCHES).to_dict("records") if SEARCHES.exists() else []
    rows = [each for each in kept if each["setting"] not in given.settings]
    for question in (q for setting in given.settings for q in questions(setting)):
        for kind in question.kinds:
            rows.append(told := row(question, kind, given.folder))
            names = ("size", "layers", "search", "iteration_ms", "cpu_seconds")
            print(*(told[name] for name in names), flush=True)
            table = pd.DataFrame(rows).sort_values("setting", kind="stable")
            table.to_csv(SEARCHES, index=False)  # the rest may be made later


if __name__ == "__main__":
    main()
