"""Megatron-LM's place in the comparison: everything on one device.

Where there is a GPU the real megatron-core trains; elsewhere, and for models that it does not have,
our own plain resident training does, and the record's `engine` and `notes` say so. Imports no torch
until a run starts.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.core.model_spec import GPT_FAMILY
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel
    from workbench.model.weights.outgoing import Weights
    from workbench.runtime.checkpoint.manifest import Saved


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with megatron-core where it can, else with everything resident on our own runtime."""
    why = why_not_core(spec)
    if why is None:
        from baselines.megatron.core import train as train_core

        return train_core(spec, report, folder)
    from workbench.methods.offload.resident import train as train_resident

    outcome = train_resident(spec, report, folder)
    return replace(outcome, notes=[*outcome.notes, f"not megatron-core: {why}"])


def weights_of(saved: Saved, model: LayeredModel) -> Weights:
    """Weights of a checkpoint that megatron-core's training has written (reading.py)."""
    from baselines.megatron import reading

    return reading.weights_of(saved, model)


def why_not_core(spec: RunSpec) -> str | None:
    """Why megatron-core does not run this spec here; None if it does."""
    import torch

    if spec.device == "cpu" or not torch.cuda.is_available():
        return "it computes on CUDA devices only"
    if importlib.util.find_spec("megatron") is None:
        return "it is not installed"
    if spec.model.family != GPT_FAMILY:
        return f"its GPT is not the model {spec.model.family}"
    if spec.model.dropout:
        return (
            f"dropout is {spec.model.dropout}, and its masks depend on the order of computation, "
            "so losses would not compare"
        )
    if spec.activations == "host":
        return "its activations are kept or recomputed, not sent to the host"
    return None
