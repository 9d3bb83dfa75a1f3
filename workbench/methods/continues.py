"""Fields of a training that decide its losses, and whether a checkpoint is of the same training.

A checkpoint continues under any method, window, tier or number of ranks, and under no other model,
data, batch, clipping or optimizer, nor where other parameters are trained or decay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.runtime.manifest import Saved

TEXT = "text of SHA-256"
FROZEN, NO_DECAY = "not trained", "without weight decay"
"""Lists of names of parameters, which older checkpoints lack."""
ENGINE = "engine:"
"""Begins the family of a module in a user's own loop."""
PIPELINE = "module"
"""A field that checkpoints of pipelines of processes have, and no others."""
ARGUMENTS = {
    "dtype": "dtype", "seed": "seed", "clip": "clip", "beta1": "the first of betas",
    "beta2": "the second of betas", "eps": "eps", "weight_decay": "weight_decay",
}  # fmt: skip
"""Of an engine, by their fields."""


def decided_by(spec: RunSpec, model: LayeredModel | None = None) -> dict[str, Any]:
    """All that decides losses, but the text: no placement, method or number of steps. Of a `model`
    that is cut from a module, also which parameters are trained and which decay."""
    decides = (
        "batch", "seed", "dtype", "clip", "lr", "lr_schedule", "warmup_steps", "weight_decay",
        "beta1", "beta2", "eps",
    )  # fmt: skip
    shared = {"model": spec.model.to_dict()} | {name: getattr(spec, name) for name in decides}
    if spec.lr_schedule != "constant":
        shared |= {"min_lr": spec.min_lr, "lr_decay_steps": spec.lr_decay_steps or spec.steps}
    if model is None or not spec.model.decomposed:
        return shared
    every = [(u, name) for u in range(model.num_units) for name in model.shapes(u)]
    learns = [one for one in every if model.learns(*one)]
    stay = [one for one in learns if spec.weight_decay and not model.decays(*one)]
    return shared | {
        FROZEN: sorted(model.state_name(*one) for one in {*every} - {*learns}),
        NO_DECAY: sorted(model.state_name(*one) for one in stay),
    }


def check_continues(saved: Saved, ours: dict[str, Any], folder: Path) -> None:
    """Raise ValueError for a checkpoint of another training. `folder` is that of the run's own
    checkpoints. A field that either side lacks has its default there; one that this version does
    not know may mean anything."""
    begins, own = f"the checkpoint {saved.path} was made", saved.path.parent == folder
    theirs, ours = _flat(saved.manifest.continues), _flat(ours)
    engine, theirs_too = (str(x.get("family")).startswith(ENGINE) for x in (ours, theirs))
    otherwise = "remove the checkpoint" if own else "begin without start_from"
    if engine:
        otherwise = "give another folder"
    if PIPELINE in theirs and PIPELINE not in ours:
        raise ValueError(
            f"{begins} by a pipeline of processes (gpipe, 1f1b, interleaved or varuna), and only "
            f"these go on from it; use one of them, or {otherwise}"
        )
    if engine != theirs_too and "family" in theirs:
        makers = "a run", "an engine in a loop of one's own"
        raise ValueError(
            f"{begins} by {makers[theirs_too]}, and this is {makers[engine]}, which does not go on "
            f"from it; {otherwise}"
        )
    if engine:
        _check_engine(begins, theirs, ours, otherwise)
        return
    for label in theirs:
        if label not in DEFAULTS | ours and label not in (TEXT, FROZEN, NO_DECAY):
            raise ValueError(
                f"{begins} with {label} {theirs[label]!r}, which is unknown to this method and "
                f"version; go on with those that made it, or {otherwise}"
            )
    for label in {**ours, **theirs}:
        here = ours.get(label, DEFAULTS.get(label, theirs.get(label)))
        there = theirs.get(label, DEFAULTS.get(label))
        if there != here and label not in (FROZEN, NO_DECAY):
            restore = "train on that text" if label == TEXT else f"set {label} to {there}"
            raise ValueError(
                f"{begins} with {label} {there}, this run has {here}: it would not be the same "
                f"training; {restore}, or {otherwise}"
            )
    _check_trained(begins, theirs, ours, otherwise)


def _check_engine(
    begins: str, theirs: dict[str, Any], ours: dict[str, Any], otherwise: str
) -> None:
    """Compare what the caller of an engine gave; sizes that the engine has made up say nothing."""
    both = {label for label in theirs if label in ours and theirs[label] != ours[label]}
    if "family" in both:
        there, here = (x["family"].removeprefix(ENGINE) for x in (theirs, ours))
        raise ValueError(f"{begins} of a {there}, and the model is a {here}; {otherwise}")
    if both & {"layers", TEXT}:
        raise ValueError(
            f"{begins} of another {ours['family'].removeprefix(ENGINE)}: the model has other "
            f"layers, or parameters of other shapes; {otherwise}"
        )
    for label, words in ARGUMENTS.items():
        if label in both:
            config = " in optimizer_config" * (label in ("beta1", "beta2", "eps", "weight_decay"))
            raise ValueError(
                f"{begins} with {words} {theirs[label]}, this engine has {ours[label]}: it would "
                f"not be the same training; give {words} {theirs[label]}{config}, or another folder"
            )
    if "batch" in both:
        raise ValueError(
            f"{begins} with batches of {theirs['batch']} rows, and this one has {ours['batch']}: "
            f"it would not be the same training; give {theirs['batch']} rows, or another folder"
        )
    _check_trained(begins, theirs, ours, otherwise)


def _check_trained(
    begins: str, theirs: dict[str, Any], ours: dict[str, Any], otherwise: str
) -> None:
    """Compare which parameters are trained, and which decay, where both say so."""
    for label, has, lacks in (
        (FROZEN, "is not trained", "is trained"),
        (NO_DECAY, "has no weight decay", "has weight decay"),
    ):
        there, here = (set(x.get(label) or ()) for x in (theirs, ours))
        if label in theirs and label in ours and there != here:
            name = min(there ^ here)
            then, now = (has, lacks) if name in there else (lacks, has)
            raise ValueError(
                f"{begins} where {name.removeprefix('module.')} {then}, and here it {now}: it "
                f"would not be the same training; {otherwise}"
            )


def _flat(shared: dict[str, Any]) -> dict[str, Any]:
    """Fields of the model, and of the run beside them."""
    model = shared.get("model", {})
    return {**model, **{k: v for k, v in shared.items() if k != "model"}}


DEFAULTS = _flat(RunSpec(method="").to_dict())
