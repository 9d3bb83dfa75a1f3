"""Consecutive units of a layered model that one process runs as a whole, with weights that stay."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workbench.model.base import Context, LayeredModel, set_parameter
from workbench.runtime.passes.bundle import Boundary, Bundle, bundled, single
from workbench.runtime.transport.group_transport import Form


class UnitRows(NamedTuple):
    """A micro-batch on the device."""

    inputs: Tensor | Bundle
    """Of the first unit: tokens [B, S], or what else the model takes."""
    targets: Tensor
    ctx: Context
    """Of the micro-batch's rows; its unit does not matter."""


class UnitStage:
    """A `StageModule` (stage_passes.py). Weights are fp32; with a `dtype` of 16 bits passes are in
    mixed precision, and floating-point tensors between stages are of it."""

    def __init__(
        self, model: LayeredModel, units: range, *, seed: int, seq: int, device: torch.device,
        dtype: torch.dtype, weights: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        """`weights` is what they are kept in; None for torch's default."""
        weights = weights or torch.get_default_dtype()
        self.model, self.units, self.device, self.dtype = model, units, device, dtype
        how = {"seed": seed, "device": device, "dtype": weights}
        self.modules = {unit: model.build(unit, **how) for unit in units}
        self.borrowed: dict[tuple[int, str], nn.Parameter] = {}
        """(unit, local name) of a weight that another stage owns -> the copy here, zeros as yet."""
        for (unit, name), lender in model.tied().items():
            if unit not in units:
                continue
            owner, lent = lender
            if owner in units:
                weight = self.modules[owner].get_parameter(lent)
            else:
                empty = torch.zeros(model.shapes(owner)[lent], device=device, dtype=weights)
                weight = self.borrowed.setdefault(lender, nn.Parameter(empty))
            set_parameter(self.modules[unit], name, weight)
        self.first, self.last = units.start == 0, units.stop == model.num_units
        self._ends = [
            Boundary(model.boundary(unit, seq), dtype) if 0 < unit < model.num_units else None
            for unit in (units.start, units.stop)
        ]
        self._steps: dict[int, Sequence[UnitRows]] = {}

    @property
    def parameters(self) -> dict[int, dict[str, nn.Parameter]]:
        """unit -> name in the whole model -> parameter that the unit owns."""
        tied = self.model.tied()
        return {
            unit: {
                self.model.state_name(unit, local): parameter
                for local, parameter in module.named_parameters()
                if (unit, local) not in tied
            }
            for unit, module in self.modules.items()
        }

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The stage's parameters by their names in the whole model, borrowed ones by their owners'
        names."""
        found = {name: own for named in self.parameters.values() for name, own in named.items()}
        names = {self.model.state_name(*lender): own for lender, own in self.borrowed.items()}
        return found | names

    def learning(self) -> dict[str, bool]:
        """Whether each of `named_parameters` is trained at all."""
        tied, found = self.model.tied(), dict.fromkeys(self.named_parameters(), True)
        for unit, module in self.modules.items():
            for local, _ in module.named_parameters():
                owner = tied.get((unit, local), (unit, local))
                found[self.model.state_name(*owner)] = self.model.learns(*owner)
        return found

    def decaying(self) -> set[str]:
        """Names of the parameters that decay."""
        return {
            self.model.state_name(unit, local)
            for unit, module in self.modules.items()
            for local, _ in module.named_parameters()
            if self.model.decays(unit, local)
        }

    def came(self, samples: int) -> list[Form]:
        """Tensors from the stage before."""
        return _forms(self._ends[0], samples)

    def goes(self, samples: int) -> list[Form]:
        """Tensors for the stage behind."""
        return _forms(self._ends[1], samples)

    def begin(self, step: int, rows: Sequence[UnitRows]) -> None:
        """Before a step: each of its micro-batches."""
        self._steps[step] = rows

    def end(self, step: int) -> None:
        """Let go of a step's rows."""
        del self._steps[step]

    def run(self, came: Bundle, micro: int, step: int) -> Bundle:
        """A pass over a micro-batch of a step. Returns tensors for the stage behind, or the mean
        loss, a scalar."""
        rows = self._steps[step][micro]
        x = rows.inputs if self.first else single(self._joined(came, rows))
        with self._autocast():
            for unit, module in self.modules.items():
                targets = rows.targets if unit == self.model.head else None
                x = self.model.forward(unit, module, x, replace(rows.ctx, unit=unit), targets)
        if self.last:
            return (x,)
        end = self._ends[1]
        each = zip(bundled(x), end.parts, end.dtypes, strict=True)
        return tuple(tensor.to(dtype) for tensor, part, dtype in each if part.given is None)

    def _joined(self, came: Bundle, rows: UnitRows) -> Bundle:
        """All that flows into the first unit here, of which each stage has by itself what the model
        is called with."""
        given, others = bundled(rows.inputs), iter(came)
        parts = self._ends[0].parts
        return tuple(next(others) if p.given is None else given[p.given] for p in parts)

    def _autocast(self) -> AbstractContextManager:
        if self.dtype.itemsize > 2:
            return nullcontext()
        keeps = torch.is_grad_enabled()  # else each cast goes with its operation
        return torch.autocast(self.device.type, self.dtype, cache_enabled=keeps)


def _forms(boundary: Boundary | None, samples: int) -> list[Form]:
    if boundary is None:
        return []
    each = zip(boundary.parts, boundary.dtypes, strict=True)
    return [
        (part.full_shape(samples), dtype, part.differentiable)
        for part, dtype in each
        if part.given is None
    ]
