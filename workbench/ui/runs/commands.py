"""Command lines that repeat a run of the table, or a whole sweep.

They are quoted for a POSIX shell. A setting at its default is left out, but for the window, whose
default on the command line is the published artifact's and not the spec's.
"""

from __future__ import annotations

import shlex
from typing import Any

from workbench.core.spec import RunSpec, flat
from workbench.runs.campaign import Campaign
from workbench.runs.overrides import make_spec
from workbench.runs.store import REPOSITORY_RESULTS, Store

FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        "layers", "hidden", "heads", "seq", "vocab", "dropout", "batch", "microbatches",
        "activations", "steps", "seed", "device", "dtype", "device_memory", "host_memory",
        "disk_memory", "text", "tokenizer", "clip", "lr", "window", "resident",
    )
}  # fmt: skip
"""Fields that have a flag of their own; the others are given with ``--set``."""
NOTEBOOK = "notebooks/sweep.ipynb"


def run_command(spec: dict[str, Any], store: Store) -> str:
    """``workbench run ...`` of a record's spec. Raises ValueError for a spec of another version."""
    asked = make_spec(spec)
    usual = flat(RunSpec(method=asked.method))
    words = ["workbench", "run", "--method", asked.method]
    for name, value in flat(asked).items():
        if name == "method" or (value == usual[name] and name != "window"):
            continue
        text = _text(value)
        if name in FLAGS:
            # A value that begins with a hyphen would be taken for a flag.
            words += [f"{FLAGS[name]}={text}"] if text.startswith("-") else [FLAGS[name], text]
        else:
            words += ["--set", f"{name}={text}"]
    return shlex.join([*words, *_results(store)])


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
        shlex.join(["workbench", "sweep", file, *_results(campaign.store)]),
    ]


def _results(store: Store) -> list[str]:
    return [] if store.root == REPOSITORY_RESULTS else ["--results", str(store.root)]


def _text(value: Any) -> str:
    """A value as the command line reads it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
