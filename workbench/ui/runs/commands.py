"""Command lines that repeat a run of the table or a whole sweep, or ask the planner.

They are quoted for a POSIX shell. A setting at its default is left out, but for the window, whose
default on the command line is the published artifact's and not the spec's.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from workbench.core.spec import RunSpec
from workbench.runs.campaign import Campaign
from workbench.runs.overrides import make_spec, words_of
from workbench.runs.store import REPOSITORY_RESULTS, Store

NOTEBOOK = "notebooks/sweep.ipynb"


def run_command(spec: dict[str, Any], store: Store) -> str:
    """``workbench run ...`` of a record's spec. Raises ValueError for a spec of another version."""
    asked = make_spec(spec)
    words = ["workbench", "run", "--method", asked.method, *words_of(asked, always="window")]
    return shlex.join([*words, *_results(store.root)])


def plan_command(spec: RunSpec, *, method: str | None, machine: str | None, results: Path) -> str:
    """``workbench plan ...`` of a question, which names no `method` where it is about all, and no
    `machine` where it is about this one."""
    words = ["workbench", "plan", *(["-m", method] if method else []), *words_of(spec)]
    return shlex.join([*words, *(["--machine", machine] if machine else []), *_results(results)])


def sweep_commands(campaign: Campaign) -> list[str]:
    """Commands that repeat or continue a named sweep: the notebook without a browser, and the
    command line."""
    file = str(campaign.folder / "sweep.json")
    root, out = campaign.store.root, campaign.store.root / "reports" / "sweeps"
    notebook = [
        "papermill", NOTEBOOK, str(out / f"{campaign.name}.ipynb"),
        "-p", "sweep", file, "-p", "results", str(root),
    ]  # fmt: skip
    return [
        shlex.join(["mkdir", "-p", str(out)]) + " && " + shlex.join(notebook),
        shlex.join(["workbench", "sweep", file, *_results(root)]),
    ]


def _results(root: Path) -> list[str]:
    return [] if root == REPOSITORY_RESULTS else ["--results", str(root)]
