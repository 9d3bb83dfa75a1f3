"""Models as lists of layers, and the text they are trained on.

A model is a `base.LayeredModel`: unit 0 embeds, units 1 to n are the layers, unit n + 1 is the head
with the loss. Methods decide where and when units run; a unit knows nothing of them. This file
imports no torch, so that a command line can check a model before a framework is loaded; nor does
`operators`, models as lists of operators, for plans that split each one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workbench.core.model_spec import ModelSpec

if TYPE_CHECKING:
    from workbench.model.base import LayeredModel

__all__ = ["Made", "ModelSpec", "make_model", "units_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Made(ModelSpec):
    """A spec for planners, of a model that is there and that no name makes."""

    model: Callable[[], LayeredModel] = field(compare=False)


def make_model(spec: ModelSpec, seed: int = 0) -> LayeredModel:
    """The model a spec describes. Holds no weights yet: `build` or `whole` make them, or read those
    that the spec begins from. `seed`, of the run, decides what a user's own module computes when it
    is made and keeps as buffers.

    Raises ValueError when the Hugging Face configuration a spec names is missing, malformed,
    changed since the spec was made, or when transformers is not installed.
    """
    if isinstance(spec, Made):
        return spec.model()
    model = _made(spec, seed)
    if spec.pretrained:
        from workbench.model.weights.trained import Trained

        model.trained = Trained(spec.pretrained, model)
    return model


def _made(spec: ModelSpec, seed: int) -> LayeredModel:
    if spec.family == "gpt":
        from workbench.model.gpt import GPT

        return GPT(spec)
    if spec.decomposed:
        from workbench.model.families import make_decomposed

        return make_decomposed(spec, seed)
    from workbench.model.hf import HFModel

    return HFModel.from_spec(spec)


def units_of(spec: ModelSpec) -> int:
    """Units of the model a spec describes. A user's own module is made to be counted, once."""
    if isinstance(spec, Made):
        return spec.model().num_units
    if not spec.custom:
        return spec.units
    from workbench.model.families import counted_units

    return counted_units(spec)
