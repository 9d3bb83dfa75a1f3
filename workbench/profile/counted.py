"""Costs of models that no closed formula describes: counted, not measured.

Parameters and operations come from the model itself, which is made without weights. So does what
autograd keeps of a layer of a decomposed module: it runs on the meta device, where tensors have
shapes and no values, and what is saved for the backward pass is added up. A Hugging Face decoder
runs a small step as the bench runs it, on tensors without values that take the memory which they
would take on the device. Times are operations at the rates that GPTs reached, so
convolutions may be faster or slower; masks of dropout are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

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

FP32_BYTES = VALUE_BYTES["fp32"]
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
    """Costs of every unit on a `gpu` or a processor. Raises ValueError for a model that cannot be
    made."""
    value_bytes = VALUE_BYTES[dtype]
    if spec.decomposed:
        module = make_decomposed(spec)

        def counted(unit: int) -> _Kept:
            return _kept(module, spec, unit).of(value_bytes)

        return _costs(module, spec, microbatch, rates, value_bytes, counted)
    decoder = _decoder(replace(spec, **by_content(spec) | {"family": spec.family}))
    needs = _needs(decoder, microbatch, spec.seq, dtype, gpu)
    costs = _costs(decoder, spec, microbatch, rates, value_bytes)
    return [replace(cost, **needs[cost.kind]) for cost in costs]


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


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Bytes of one sample."""

    nbytes: int = 0
    """Bytes that autograd keeps beside weights, input and output."""
    forward_scratch: int = 0
    backward_scratch: int = 0

    def of(self, value_bytes: int) -> _Kept:
        """The bytes of other values than those of fp32, which were counted."""
        found = {name: nbytes * value_bytes // FP32_BYTES for name, nbytes in vars(self).items()}
        return _Kept(**found)


def _costs(
    model: LayeredModel,
    spec: ModelSpec,
    microbatch: int,
    rates: Rates,
    value_bytes: int,
    kept_of: Callable[[int], _Kept] = lambda unit: _Kept(),
) -> list[UnitCost]:
    """One object a kind of unit."""
    found: dict[str, UnitCost] = {}
    for unit in range(model.num_units):
        if (kind := model.kind(unit)) in found:
            continue
        flops, kept = model.flops(unit, microbatch, spec.seq), kept_of(unit)
        timed = flops if unit or spec.decomposed else 0.0  # a decoder's first unit looks up
        found[kind] = UnitCost(
            kind=kind,
            parameters=model.unit_parameters(unit),
            forward_s=timed / rates.forward,
            recompute_s=timed / rates.backward,
            backward_s=2 * timed / rates.backward,
            input_bytes=_entering(model, spec, unit, microbatch, value_bytes),
            output_bytes=(
                0 if unit == model.head else _bytes(model, spec, unit + 1, microbatch, value_bytes)
            ),
            kept_bytes=microbatch * kept.nbytes,
            forward_scratch_bytes=microbatch * kept.forward_scratch,
            backward_scratch_bytes=microbatch * kept.backward_scratch,
            flops=timed,
        )
    return [found[model.kind(unit)] for unit in range(model.num_units)]


def _entering(
    model: LayeredModel, spec: ModelSpec, unit: int, samples: int, value_bytes: int
) -> int:
    """Bytes of a unit's input; of the first one's, what the data set gives."""
    if unit:
        return _bytes(model, spec, unit, samples, value_bytes)
    *inputs, _ = blank_rows(spec, 1)
    return samples * sum(tensor.nbytes for tensor in inputs)


def _bytes(model: LayeredModel, spec: ModelSpec, unit: int, samples: int, value_bytes: int) -> int:
    return sum(
        prod(part.full_shape(samples))
        * (value_bytes if part.dtype is None else part.dtype.itemsize)
        for part in model.boundary(unit, spec.seq)
    )


def _kept(model: Decomposed, spec: ModelSpec, unit: int) -> _Kept:
    """Bytes of a unit's forward pass that its backward pass needs, counted on the meta device if
    the unit runs there."""
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
    scratch = SCRATCH * max(saved.values(), default=0) // EXAMPLE
    return _Kept(
        nbytes=sum(saved.values()) // EXAMPLE, forward_scratch=scratch, backward_scratch=scratch
    )


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
