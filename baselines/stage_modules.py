"""Units of a rank's stages as one module, and each stage as torch's pipelines call it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from baselines.packed import Packed
from workbench.model.base import Context, LayeredModel, set_parameter
from workbench.model.checkpointed import stops_early
from workbench.runtime.passes.bundle import single


class Stages(nn.Module):
    """Some units of a model, as `Whole` has all of them: [m, S] tokens or [m, S, H] -> [m, S, H],
    or what flows between the units of a module.

    The units of other ranks are empty modules, so that numbers stay those of the model. The head,
    which takes targets too, is run by `loss`.
    """

    def __init__(
        self,
        model: LayeredModel,
        own: Sequence[range],
        *,
        seed: int,
        device: torch.device,
        checkpoint: bool,
    ) -> None:
        super().__init__()
        self.layered, self.seed, self.checkpoint = model, seed, checkpoint
        self.own = sorted(unit for stage in own for unit in stage)
        self.step = 0
        """The optimizer step, which draws depend on. (torch 2.11 takes tensors only in a call.)"""
        self.units = nn.ModuleList(
            model.build(unit, seed=seed, device=device) if unit in self.own else nn.Module()
            for unit in range(model.num_units)
        )
        self.passed: Context | None = None
        """Identity of the micro-batch that passed the head last."""

    def share_tied(self, device: torch.device, dtype: torch.dtype) -> list[tuple[int, str]]:
        """Make a weight that two units of this rank use one parameter. One that belongs to another
        rank's unit gets memory, once; returns (unit, local name) of those."""
        borrowed: dict[tuple[int, str], tuple[int, str]] = {}
        for (unit, name), (owner, owner_name) in self.layered.tied().items():
            if unit not in self.own:
                continue
            if owner in self.own:
                weight = self.units[owner].get_parameter(owner_name)
            elif (owner, owner_name) in borrowed:
                first, its = borrowed[owner, owner_name]
                weight = self.units[first].get_parameter(its)
            else:
                shape = self.layered.shapes(owner)[owner_name]
                weight = torch.empty(shape, dtype=dtype, device=device)
                borrowed[owner, owner_name] = unit, name
            set_parameter(self.units[unit], name, weight)
        return [*borrowed.values()]

    @property
    def blocks(self) -> list[nn.Module]:
        """Layers of all stages of the rank."""
        return [self.units[unit] for unit in self.own if 0 < unit < self.layered.head]

    def run(self, stage: range, x: Any, *, samples: Tensor) -> Any:
        """One micro-batch through a stage; `samples` [m] are the global numbers of its rows."""
        rows, run = tuple(samples.tolist()), self.layered.forward
        for unit in stage:
            ctx = Context(seed=self.seed, step=self.step, unit=unit, samples=rows)
            if unit == self.layered.head:
                self.passed = ctx
                break
            if self.checkpoint and unit:
                x = checkpointed(
                    run, unit, self.units[unit], x, ctx,
                    use_reentrant=False, preserve_rng_state=False,
                    early_stop=stops_early(self.layered),
                )  # fmt: skip
            else:
                x = run(unit, self.units[unit], x, ctx)
        return x

    def loss(self, x: Any, targets: Tensor, ctx: Context) -> Tensor:
        """Mean loss of a micro-batch, an fp32 scalar."""
        return self.layered.forward(ctx.unit, self.units[ctx.unit], x, ctx, targets)


class Stage(nn.Module):
    """One stage, as torch's schedules call it. Its units are those of `Stages`."""

    def __init__(self, stages: Stages, own: range, came: Packed | None, leaves: Packed) -> None:
        """Forms of what comes in, of the first stage None, and of what goes out."""
        super().__init__()
        self.units = nn.ModuleList(stages.units[unit] for unit in own)
        self._run, self._came, self._leaves = partial(stages.run, own), came, leaves

    def forward(self, *given: Tensor, **of: Any) -> Tensor:
        """One micro-batch: the model's inputs, or one tensor."""
        x = single(given) if self._came is None else self._came.unpack(*given)
        return self._leaves.pack(self._run(x, **of))
