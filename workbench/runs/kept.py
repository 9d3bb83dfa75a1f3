"""Checkpoints that runs have kept: which to take, and what of the run is known beside it.

Imports no torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from workbench.core.model_spec import ENGINE, ModelSpec
from workbench.core.paths import user_path
from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed
from workbench.core.spec import RunSpec
from workbench.runs.store import REPOSITORY_RESULTS, Store
from workbench.runtime.checkpoint.manifest import MANIFEST, Saved, step_name, steps_in

CHECKPOINTS, SPEC = "checkpoints", "spec.json"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A checkpoint, and what is known of its run."""

    saved: Saved
    model: ModelSpec | None
    """None of a module in a user's own loop or script."""
    spec: RunSpec | None
    """The run's; None of a checkpoint that lies elsewhere."""
    notes: list[str]
    """On checkpoints that were passed over."""

    @property
    def form(self) -> str:
        """Whose own files a library's checkpoint is of; empty for ours."""
        return str(self.saved.manifest.continues.get("form", ""))


def find_kept(run: str | Path, store: Store, step: int | None = None) -> Kept:
    """A run's newest checkpoint that is sound, or that of a step: the run by its key or its folder,
    or the checkpoint by its own. Raises ValueError where there is none, and OSError for a damaged
    one."""
    place = _place(run, store)
    if (place / MANIFEST).is_file():
        saved = Saved.read(place)
        if step not in (None, saved.manifest.next_step):
            raise ValueError(
                f"step is {step}, and {place} is the checkpoint of step {saved.manifest.next_step}"
            )
        return _known(saved, [])
    folder = place if steps_in(place) else place / CHECKPOINTS
    steps = steps_in(folder)
    if not steps:
        why = ""
        with suppress(OSError, ValueError):
            spec = RunSpec.from_dict(read_sealed(place / SPEC, SPEC))
            why = "; it was run without save_every" if not spec.save_every else ""
        raise ValueError(f"there is no checkpoint in {place}{why}")
    if step is not None:
        if step not in steps.values():
            there = ", ".join(map(str, sorted(steps.values())))
            raise ValueError(f"step is {step}, which {folder} has not kept; it has {there}")
        return _known(Saved.read(folder / step_name(step)), [])
    passed: list[OSError] = []
    for path in steps:
        try:
            return _known(Saved.read(path), [f"{why}; the one before is taken" for why in passed])
        except OSError as error:
            passed.append(error)
    raise passed[0]


def where_kept(spec: RunSpec, key: str, store: Store) -> str:
    """Where the weights of a finished run are, or why they are nowhere, in a sentence."""
    steps = steps_in(store.folder(key) / CHECKPOINTS)
    if not steps:
        why = "save_every was not given" if not spec.save_every else "no checkpoint was written"
        return f"weights: not kept, since {why}"
    run = key if store.root == REPOSITORY_RESULTS else shlex.quote(str(store.folder(key)))
    newest, step = next(iter(steps.items()))
    late = f", of {step} of {spec.steps} steps, since no later one was written"
    told = f"weights: {newest}{late * (step < spec.steps)}"
    return f"{told}; workbench export {run} FOLDER writes them for use"


def _place(run: str | Path, store: Store) -> Path:
    """Folder that is meant."""
    named = user_path(run)
    if named.is_dir():
        return named.resolve()
    if named.name == str(run) and store.folder(named.name).is_dir():
        return store.folder(named.name)
    raise ValueError(
        f"{str(run)!r} is no folder, and no run of that key is in {store.runs}; name a run or a "
        "checkpoint"
    )


def _known(saved: Saved, notes: list[str]) -> Kept:
    continues, spec = saved.manifest.continues, None
    if saved.path.parent.name == CHECKPOINTS:
        with suppress(OSError, ValueError):  # of another version, or gone
            spec = RunSpec.from_dict(read_sealed(saved.path.parents[1] / SPEC, SPEC))
    told, model = continues.get("model"), None
    if isinstance(told, Mapping) and not str(told.get("family", "")).startswith(ENGINE):
        model = read_as(ModelSpec, told, f"the model of the checkpoint {saved.path}")
    return Kept(saved=saved, model=model, spec=spec, notes=notes)
