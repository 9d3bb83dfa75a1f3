"""Costs of models that no closed formula describes: counted, not measured.

Parameters and operations come from the model itself, which is made without weights. So does what
autograd keeps of a layer of a decomposed module: it runs on the meta device, where tensors have
shapes and no values, and what is saved for the backward pass is added up. A Hugging Face decoder
runs a small step as the bench runs it, on tensors without values that take the memory which they
would take on the device. Times are operations at the rates that GPTs reached, so
convolutions may be faster or slower; masks of dropout are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from workbench.core.model_spec import ModelSpec
from workbench.core.sources import by_content
from workbench.core.spec import VALUE_BYTES
from workbench.model import make_model
from workbench.model.base import Context, LayeredModel
from workbench.model.families import EXAMPLE, blank_rows, make_decomposed
from workbench.model.modules import Decomposed
from workbench.profile.alone import Setting
from workbench.profile.footprint import footprints
from workbench.profile.units import UnitCost
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.bundle import Boundary

SCRATCH = 2
"""Tensors as large as the largest that is kept, beside those that are, in either pass."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Floating-point operations per second."""

    forward: float
    backward: float


def unit_costs(
    spec: ModelSpec, microbatch: int, rates: Rates, dtype: str = "fp32", *, gpu: bool = True
) -> list[UnitCost]:
    """Costs of every unit on a `gpu` or a processor, one object a kind of unit. Raises ValueError
    for a model that cannot be made."""
    if spec.decomposed:
        model = made = (make_decomposed if spec.custom else _module)(spec)

        def needs(unit: int) -> dict[str, int]:
            per_sample = _kept(made, spec, unit, dtype)
            return {name: microbatch * nbytes for name, nbytes in per_sample.items()}
    else:
        named = by_content(spec) | {"family": spec.family}
        model = _decoder(replace(spec.anywhere, **named))
        counted = _needs(model, microbatch, spec.seq, dtype, gpu)

        def needs(unit: int) -> dict[str, int]:
            return counted[model.kind(unit)]

    def entering(unit: int) -> int:
        return Boundary(model.boundary(unit, spec.seq), DTYPES[dtype]).nbytes(microbatch)

    *first, _ = blank_rows(spec, 1)
    found: dict[str, UnitCost] = {}
    for unit in range(model.num_units):
        if (kind := model.kind(unit)) in found:
            continue
        flops = model.flops(unit, microbatch, spec.seq)
        timed = flops if unit or spec.decomposed else 0.0  # a decoder's first unit looks up
        nbytes = {
            "input_bytes": entering(unit) if unit else microbatch * sum(t.nbytes for t in first),
            "output_bytes": 0 if unit == model.head else entering(unit + 1),
        }
        found[kind] = UnitCost(
            kind=kind,
            parameters=model.unit_parameters(unit),
            forward_s=timed / rates.forward,
            recompute_s=timed / rates.backward,
            backward_s=2 * timed / rates.backward,
            flops=timed,
            **{**nbytes, **needs(unit)},
        )
    return [found[model.kind(unit)] for unit in range(model.num_units)]


@lru_cache(maxsize=64)
def _needs(
    decoder: LayeredModel, microbatch: int, seq: int, dtype: str, gpu: bool
) -> dict[str, dict[str, int]]:
    """Bytes of a decoder's passes by the kind of unit, as footprint.py counts them."""
    setting = Setting.of_tokens(decoder, (microbatch, seq), dtype=dtype, device="cpu")
    return footprints(setting, fake=True, as_on_gpu=gpu)[0]


@lru_cache(maxsize=4)
def _decoder(spec: ModelSpec) -> LayeredModel:
    """The decoder of a configuration, which the spec names by content, too: every method asks."""
    return make_model(spec)


@lru_cache(maxsize=4)
def _module(spec: ModelSpec) -> Decomposed:
    """The layers of a family of ours."""
    return make_decomposed(spec)


def _kept(model: Decomposed, spec: ModelSpec, unit: int, dtype: str) -> dict[str, int]:
    """Bytes of one sample that autograd keeps beside weights, input and output, and scratch,
    counted in fp32, on the meta device if the unit runs there."""
    module = model.build(unit, seed=0, device=model.bare_device(unit))
    inputs, targets = _taken(model, spec, unit)
    given = {t.untyped_storage()._cdata for t in (*inputs, *module.parameters())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in given:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    ctx = Context(seed=0, step=0, unit=unit, samples=tuple(range(EXAMPLE)), training=False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = model.forward(unit, module, inputs, ctx, targets if unit == model.head else None)
    for tensor in made if isinstance(made, tuple) else (made,):
        saved.pop(tensor.untyped_storage()._cdata, None)
    kept, scratch = (
        nbytes // EXAMPLE * VALUE_BYTES[dtype] // VALUE_BYTES["fp32"]
        for nbytes in (sum(saved.values()), SCRATCH * max(saved.values(), default=0))
    )
    return {
        "kept_bytes": kept, "forward_scratch_bytes": scratch, "backward_scratch_bytes": scratch
    }  # fmt: skip


def _taken(model: Decomposed, spec: ModelSpec, unit: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """A unit's inputs and the model's targets, without values or with none that matter."""
    device = model.bare_device(unit)
    *first, targets = (tensor.to(device) for tensor in blank_rows(spec, EXAMPLE))
    if unit == 0:
        return tuple(first), targets
    later = (
        torch.zeros(
            part.full_shape(EXAMPLE), dtype=part.dtype or torch.float32, device=device
        ).requires_grad_(part.differentiable)
        for part in model.boundary(unit, spec.seq)
    )
    return tuple(later), targets
