"""Fields of a training that decide its losses, and whether a checkpoint is of the same training.

A checkpoint continues under any method, window, tier or number of ranks, and under no other model,
data, batch, clipping or optimizer, nor where other parameters are trained or decay. Imports no
torch.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.model_spec import ENGINE, FUNCTION, OF_DECODERS, ModelSpec
from workbench.core.paths import user_path
from workbench.core.reporter import Untold
from workbench.core.spec import RunSpec
from workbench.runtime.checkpoint.manifest import MANIFEST, Saved, steps_in, take_newest

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel

TEXT = "text of SHA-256"
FROZEN, NO_DECAY = "not trained", "without weight decay"
"""Lists of names of parameters, which older checkpoints lack."""
BEGAN = "pretrained"
"""A field that older checkpoints have: where the training began no longer matters."""
PIPELINE = "module"
"""A field that checkpoints of pipelines of processes have, and no others."""
GIVEN = {
    "family": "module", "layers": "layers", TEXT: "shapes", "dtype": "dtype", "seed": "seed",
    "clip": "clip", "beta1": "the first of betas", "beta2": "the second of betas", "eps": "eps",
    "weight_decay": "weight_decay", "batch": "rows of a batch",
}  # fmt: skip
"""Fields that an engine's caller gave, in his words; others it has made up."""


class OtherTraining(ValueError):
    """A checkpoint is of another training; nothing of it has been taken up."""


def decided_by(spec: RunSpec, model: LayeredModel | None = None) -> dict[str, Any]:
    """All that decides losses, but the text: no placement, method or number of steps. Of a `model`
    that is cut from a module, also which parameters are trained and which decay."""
    decides = (
        "batch", "seed", "dtype", "clip", "lr", "lr_schedule", "warmup_steps", "weight_decay",
        "beta1", "beta2", "eps",
    )  # fmt: skip
    shared: dict[str, Any] = {"model": replace(spec.model, calls="", pretrained="").to_dict()}
    shared |= {name: getattr(spec, name) for name in decides}
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
    """Raise OtherTraining for a checkpoint of one. `folder` is that of the run's own checkpoints.
    A field that either side lacks has its default there; one that this version does not know may
    mean anything."""
    begins, own = f"the checkpoint {saved.path} was made", saved.path.parent == folder
    theirs, ours = _flat(saved.manifest.continues), _flat(ours)
    family, digest = str(ours.get("family")), ours.get("config_digest")
    engine = family.startswith(ENGINE)
    of_a_file = bool(digest) and not FUNCTION.fullmatch(family)
    moved = of_a_file and theirs.get("config_digest") == digest
    otherwise = "remove the checkpoint" if own else "begin without start_from"
    who, otherwise = ("engine", "give another folder") if engine else ("run", otherwise)
    theirs_engine = str(theirs.get("family", ENGINE * engine)).startswith(ENGINE)
    for what, there, here in (
        ("a pipeline of stages", PIPELINE in theirs, PIPELINE in ours),
        ("an engine in a loop of one's own", theirs_engine, engine),
        (f"{theirs.get('form', 'a library')} in its own form", "form" in theirs, "form" in ours),
    ):
        if there != here:
            told = f"without {what}, which does not go"
            if there:
                told = f"by {what}, and nothing else goes"
            raise OtherTraining(f"{begins} {told} on from it; {otherwise}")
    for label in theirs:
        if label not in (*DEFAULTS, *ours, TEXT, FROZEN, NO_DECAY, "job"):
            raise OtherTraining(
                f"{begins} with {label} {theirs[label]!r}, which is unknown to this method and "
                f"version; go on with those that made it, or {otherwise}"
            )
    for label in [x for x in GIVEN if x in ours and x in theirs] if engine else {**ours, **theirs}:
        here = ours.get(label, DEFAULTS.get(label, theirs.get(label)))
        there = theirs.get(label, DEFAULTS.get(label))
        if there == here or label in (FROZEN, NO_DECAY, BEGAN) or (label == "family" and moved):
            continue
        if engine and label in ("layers", TEXT):
            told = "of a module with other layers, or parameters of other shapes"
            raise OtherTraining(f"{begins} {told}; give that module, or {otherwise}")
        name = GIVEN[label] if engine else label
        if engine and label == "family":
            there, here = there.removeprefix(ENGINE), here.removeprefix(ENGINE)
        restore = "train on that text" if label == TEXT else f"set {name} to {there}"
        if not (engine or own or label in SIZES) or (of_a_file and not own and label in FITTING):
            restore += ", give --weights instead of start_from to begin with fresh moments"
        raise OtherTraining(
            f"{begins} with {name} {there}, this {who} has {here}: it would not be the same "
            f"training; {restore}, or {otherwise}"
        )
    for label, words in ((FROZEN, "trained"), (NO_DECAY, "decayed")):
        there, here = (set(x.get(label) or ()) for x in (theirs, ours))
        if label in theirs and label in ours and there != here:
            name = min(there ^ here)
            then, now = ("not ", "") if name in there else ("", "not ")
            raise OtherTraining(
                f"{begins} where {name.removeprefix('module.')} is {then}{words}, and here it is "
                f"{now}{words}: it would not be the same training; {otherwise}"
            )


def check_start(
    spec: RunSpec, folder: Path, model: LayeredModel | None = None, text: str = ""
) -> None:
    """Raise ValueError, before anything is measured, where there is no checkpoint of the run to
    start from, or the newest is of another training, as far as manifests tell. `folder` is the
    run's own, as for `History`; `text` the digest of its data, where that has been read."""
    own, ours = folder / "checkpoints", decided_by(spec, model) | ({TEXT: text} if text else {})
    take_newest(paths_of(spec, own), lambda saved: check_continues(saved, ours, own), Untold())


def paths_of(spec: RunSpec, folder: Path) -> list[Path]:
    """Checkpoints of no more steps than a run has, its own, of `folder`, first, newest first.
    Raises ValueError where a run that is to start from another one has none at all."""
    folders = [folder] if spec.save_every else []
    if spec.start_from:
        named = user_path(spec.start_from)
        run = named if named.is_dir() else folder.parents[1] / spec.start_from
        folders.append(run / "checkpoints")
    paths = [path for each in folders for path, n in steps_in(each).items() if n <= spec.steps]
    if spec.start_from and not paths:
        lacking = f"no such folder, and no run of that key in {folder.parents[1]}"
        if (run / MANIFEST).is_file():
            lacking = f"no run, but a checkpoint; give its run {run.parents[1]}, or --weights {run}"
        elif run.is_dir():
            lacking = f"no whole checkpoint of at most {spec.steps} steps in {folders[-1]}"
        raise ValueError(f"start_from is {spec.start_from!r}; there is {lacking}")
    return paths


def _flat(shared: dict[str, Any]) -> dict[str, Any]:
    """Fields of the model, and of the run beside them."""
    model = shared.get("model", {})
    return {**model, **{k: v for k, v in shared.items() if k != "model"}}


FITTING = frozenset(("seq", "dropout", *OF_DECODERS))
"""Fields of a model of a configuration's file with which the weights of any other value go."""
SIZES = frozenset(each.name for each in fields(ModelSpec))
DEFAULTS = _flat(RunSpec(method="").to_dict())
