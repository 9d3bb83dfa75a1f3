"""Exports of runs: which checkpoint, by whose reader, and the module that its weights are of.

How a folder is written, model/weights/folder.py says.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from workbench.core import methods
from workbench.core.model_spec import ENGINE, T5_FAMILY
from workbench.core.paths import user_path
from workbench.core.sources import config_file
from workbench.model import make_model
from workbench.model.families import module_of, t5_shape
from workbench.model.hf_config import read_config, transformers_package
from workbench.model.hf_layers import Decoder
from workbench.model.objective import PREFIX
from workbench.model.t5_names import to_hugging_face
from workbench.model.tokenizer_folder import is_folder
from workbench.model.weights.folder import Tell, new_folder, write_folder
from workbench.model.weights.outgoing import Weights
from workbench.model.weights.shards import MOST
from workbench.model.weights.stored import find
from workbench.model.whole import make_whole
from workbench.runs.kept import Kept, find_kept
from workbench.runs.store import Store
from workbench.runtime.checkpoint.weights import weights_of
from workbench.runtime.memory.storage import DTYPES

AUTO, META, CONFIG = "auto", "meta", "config.json"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Weights in a folder."""

    folder: Path
    step: int
    """Steps that were done when they were kept."""
    parameters: int
    """Elements of all weights, tied ones counted once."""
    files: int
    dtype: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = f"{self.files} file{'s' * (self.files != 1)}"
        return (
            f"exported: {self.parameters:,} parameters of step {self.step} to {self.folder} "
            f"({count}, {self.dtype})"
        )


def export(
    run: str | Path,
    folder: str | Path,
    store: Store,
    *,
    step: int | None = None,
    dtype: str = AUTO,
    tell: Tell = lambda done, whole: None,
    most: int | str = MOST,
) -> Exported:
    """Write the weights of a run, by its key or folder, or of a checkpoint, into a new folder;
    `most` are the bytes of a file. Raises ValueError for what cannot be exported, and OSError for a
    damaged checkpoint or a disk that refuses; nothing is written then."""
    if dtype not in (AUTO, *DTYPES):
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join((AUTO, *DTYPES))}")
    target = new_folder(folder)
    kept = find_kept(run, store, step)
    word = _came_in(kept) if dtype == AUTO else dtype
    weights, folders = _weights_of(kept), _folders(kept)
    if kept.model and kept.model.family == T5_FAMILY and folders:
        module = _t5_in(folders["came_from"], tied=kept.model.tied)
        weights = to_hugging_face(weights, t5_shape(kept.model))
    else:
        module = _module_of(kept)
    how = {**folders, "tell": tell, "most": most}
    files = write_folder(target, weights, module, DTYPES[word], **how)
    return Exported(
        folder=target, step=kept.saved.manifest.next_step, parameters=weights.parameters,
        files=files, dtype=word, notes=(*kept.notes,),
    )  # fmt: skip


def _came_in(kept: Kept) -> str:
    """Type of the weights that the run began from: fp32 of those that were made for it. Raises
    ValueError where those of a path are gone."""
    began = kept.spec.model.pretrained if kept.spec else ""
    try:
        came = find(began).dtypes if began else "fp32"
    except ValueError as error:
        raise ValueError(f"{error}; the run began from them, so give a dtype to export") from None
    return came if came in DTYPES else "fp32"


def _weights_of(kept: Kept) -> Weights:
    """Those of the checkpoint; a library's are read by the method that wrote it. Raises ValueError
    where that is unknown, or reads none."""
    if not kept.form:
        family = str(kept.saved.manifest.continues.get("model", {}).get("family", ""))
        return weights_of(kept.saved, PREFIX if family.startswith(ENGINE) else "")
    method = kept.spec and methods.load(kept.spec.method)
    if not hasattr(method, "weights_of"):
        raise ValueError(
            f"the checkpoint {kept.saved.path} is of {kept.form}'s own files, which are exported "
            "from the folder of a run, whose method reads them"
        )
    return method.weights_of(kept.saved, make_model(kept.model))


def _module_of(kept: Kept) -> nn.Module | None:
    """The trained model as one module, mostly on the meta device; None of a module in a user's own
    loop or script, and of one whose function is not there any more, which is noted. Raises
    ValueError where any other cannot be made."""
    if kept.model is None:
        return None
    seed = kept.saved.manifest.continues["seed"]
    if kept.model.custom:
        try:
            return module_of(kept.model, seed)
        except ValueError as error:
            kept.notes.append(f"without what the checkpoint alone does not know: {error}")
            return None
    if kept.model.decomposed:
        with torch.device(META):
            return module_of(kept.model, seed)
    model = make_model(kept.spec.model if kept.spec else kept.model, seed)
    return model.source if isinstance(model, Decoder) else make_whole(model, seed=seed, device=META)


def _t5_in(folder: Path, *, tied: bool) -> nn.Module:
    """The T5 of a folder's configuration as transformers has it, on the meta device."""
    config, _ = read_config(folder)
    with torch.device(META):
        module = transformers_package().T5ForConditionalGeneration(config)
        if not tied:  # which transformers ties until it reads other weights
            module.lm_head.weight = nn.Parameter(torch.empty_like(module.lm_head.weight))
    return module


def _folders(kept: Kept) -> dict[str, Path]:
    """Folders that a model of Hugging Face's, and the tokenizer of its run, came from."""
    file = kept.model and config_file(kept.model)
    if kept.spec and kept.model and kept.model.family == T5_FAMILY and kept.spec.model.pretrained:
        file = user_path(kept.spec.model.pretrained) / CONFIG
    if file is None or not file.is_file():
        return {}
    named = kept.spec.tokenizer if kept.spec else ""
    tokenizer = user_path(named) if is_folder(named) else file.parent
    return {"came_from": file.parent, "tokenizer": tokenizer}
