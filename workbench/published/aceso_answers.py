"""Searches of Aceso's published large settings, made on the published profiles.

    python -m workbench.published.aceso_answers FOLDER [large scale]

writes ``aceso_searches.csv`` (`aceso.searches`) again, or the rows of a setting: a quarter of an
hour on one core. FOLDER has the large database of the artifact, of which GPT's files are read;
those of Wide-ResNet and T5 are not at hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core import host
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.settings import SETS, WAYS, Setting, searched
from workbench.published.aceso import SEARCHES

PLANS = 1000
"""Plans that a search rates at most, for each number of stages."""
KINDS = dict(zip(WAYS, ("megatron", "alpa", "faithful", "ours"), strict=True))
"""Search by its name in settings -> in the table."""


def questions(setting: str) -> Iterator[Setting]:
    """Models of GPT of a setting: ``large`` or ``scale``."""
    yield from (each for each in SETS[setting] if each.model not in ("t5", "resnet"))


def row(question: Setting, way: str, folder: Path) -> dict[str, Any]:
    """A line of the table."""
    outcome = searched(question, way, folder, Effort(plans=PLANS))
    plan, cost = outcome.best
    fullest = max(cost.stages, key=lambda stage: stage.memory)
    return {
        "setting": "scale" if question.layers else "large", "model": "gpt", "size": question.size,
        "layers": plan.subject.layers, "gpus": question.gpus, "search": KINDS[way],
        "stages": len(plan.stages), "micro": plan.micro, "fits": outcome.fits,
        "iteration_ms": round(cost.time, 2), "normal_mb": round(fullest.normal, 2),
        "reserved_mb": round(fullest.reserved, 2),
        "explored": sum(found.explored for found in outcome.found.values()),
        "cpu_seconds": round(outcome.cpu_seconds, 2), "hardware": f"one core of {host.cpu_model()}",
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
        for way in question.ways:
            rows.append(told := row(question, way, given.folder))
            names = ("size", "layers", "search", "iteration_ms", "cpu_seconds")
            print(*(told[name] for name in names), flush=True)
            table = pd.DataFrame(rows).sort_values("setting", kind="stable")
            table.to_csv(SEARCHES, index=False)  # the rest may be made later


if __name__ == "__main__":
    main()
