"""Exhibits: the figures and tables of the papers and of this project, by name.

An exhibit is one class in one file (`base.Exhibit`), with its words and claims in a TOML file
beside it; what a system's exhibits share is in its ``base.py`` and ``base.toml``. Here is one line
for each.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from workbench.core.mistakes import in_a_sentence
from workbench.core.paths import user_path
from workbench.exhibits.base import Exhibit
from workbench.exhibits.session import Session
from workbench.model.corpus import STDLIB
from workbench.runs.store import REPOSITORY_RESULTS, Store
from workbench.shown import unknown_injected

STRONGHOLD = {
    "6a": "stronghold.fig6a.LargestModel",
    "7a": "stronghold.fig7a.ThroughputAtLargest",
    "8a": "stronghold.fig8a.Throughput",
    "8b": "stronghold.fig8b.Depth",
    "9": "stronghold.fig9.Window",
}
"""Exhibits of STRONGHOLD (SC'22), by their keys, and the class of each."""
HARDWARE = {
    "here_offload": "hardware.offload.Offload",
    "here_lanes": "hardware.lanes.LaneByLane",
    "here_servers": "hardware.servers.Servers",
    "pipelines": "hardware.pipelines.Pipelines",
}
"""This project's own: what it measured on named hardware, steps of it lane by lane, what it
measured on servers of several GPUs, and its pipelines."""
HARMONY = {
    "harmony_8": "harmony.fig8.Balance",
    "harmony_10": "harmony.fig10.FourModels",
    "harmony_12": "harmony.fig12.SwapVolume",
    "harmony_13": "harmony.fig13.FineTuning",
    "harmony_17": "harmony.fig17.TimePerIteration",
    "harmony_18": "harmony.fig18.SpeedUp",
    "harmony_21": "harmony.fig21.LanguageModelling",
    "harmony_table1": "harmony.table1.Searches",
}
"""Exhibits of Harmony (VLDB'22)."""
VARUNA = {
    "varuna_schedules": "varuna.schedules.Schedules",
    "varuna_bubbles": "varuna.bubbles.Bubbles",
    "varuna_jitter": "varuna.jitter.UnderJitter",
    "varuna_accuracy": "varuna.accuracy.Accuracy",
    "varuna_morphing": "varuna.morphing.Morphing",
    "varuna_scaling": "varuna.scaling.Scaling",
}
"""Exhibits of Varuna (EuroSys'22)."""
FTPIPE = {
    "ftpipe_balance": "ftpipe.balance.Balance",
    "ftpipe_blocks": "ftpipe.blocks.OverBlocks",
    "ftpipe_partitions": "ftpipe.partitions.Partitions",
    "ftpipe_schedules": "ftpipe.schedules.Schedules",
    "ftpipe_quality": "ftpipe.quality.Quality",
    "ftpipe_target": "ftpipe.target.Target",
}
"""Exhibits of FTPipe (ATC'21)."""
ACESO = {
    "aceso_small": "aceso.small.Small",
    "aceso_7": "aceso.throughput.Throughput",
    "aceso_8": "aceso.search_cost.SearchCost",
    "aceso_9": "aceso.depths.Depths",
    "aceso_15": "aceso.times.Times",
    "aceso_16": "aceso.memory.Memory",
    "aceso_cases": "aceso.cases.Cases",
    "aceso_search": "aceso.ablations.Ablations",
}
"""Exhibits of Aceso (EuroSys'24)."""
EXHIBITS = STRONGHOLD | HARDWARE | HARMONY | VARUNA | FTPIPE | ACESO


def find(figure: str) -> Exhibit:
    """The exhibit by its number, ``8a`` or ``fig8a``, or by its name, ``harmony_8``.

    Raises ValueError naming the known ones.
    """
    name = figure.lower().removeprefix("fig")
    if name not in EXHIBITS:
        known = ", ".join(find(each).name for each in EXHIBITS)
        raise ValueError(f"unknown exhibit {figure!r}; known: {known}")
    module, _, made = EXHIBITS[name].rpartition(".")
    return getattr(import_module(f"{__name__}.{module}"), made)()


@in_a_sentence()
def open_exhibit(
    figure: str,
    size: str = "smoke",
    results: str | Path = REPOSITORY_RESULTS,
    text: str = STDLIB,
    machine: str = "",
    **changes: Any,
) -> Session:
    """The exhibit `figure` (``8a``) at a size: ``smoke``, ``small`` or ``paper``. Starts nothing.

    This project's own (``here_offload``) are the same at every size: they show what is committed.
    `results` is the folder of the run records, as on the command line (`Store`), `text` one that
    Harmony's figures 13 and 21 train on (`text_for`); a relative one lies in the repository.
    `machine` is a folder in ``published-here`` for exhibits that show committed rows, else the one
    with most of them. `changes` take the place of the size's values: ``batch=8``
    (`Exhibit.takes`). Raises ValueError for an unknown exhibit, size, text, machine or parameter,
    and for ``small`` without a GPU.
    """
    exhibit = find(figure)
    exhibit.check_names(unknown_injected())
    text = text_for(exhibit, size, text, REPOSITORY_RESULTS.parent)
    return Session(exhibit, size, Store(results), text, machine, **changes)


def text_for(exhibit: Exhibit, size: str, text: str, base: Path) -> str:
    """Where the text lies, a relative path from `base` on. Raises ValueError, one sentence, for an
    exhibit that reads none, and for a folder that is missing or not of the exhibit's format."""
    if text == STDLIB:
        return text
    if not exhibit.reads:
        able = " and ".join(name for name in EXHIBITS if find(name).reads)
        raise ValueError(f"{exhibit.words} trains on no text of your own; {able} do")
    folder = (base / user_path(text)).resolve()
    exhibit.text_in(folder, size)
    return str(folder)
