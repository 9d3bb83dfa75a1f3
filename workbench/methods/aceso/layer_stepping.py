"""Steps of a plan for a module's layers in one process: stages of whole layers, and dp by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from workbench.methods.aceso.plan import Plan
from workbench.methods.aceso.stepping import PlanStepping, Setting
from workbench.model.modules import Decomposed
from workbench.runtime.passes.layer_stage import LayerStage, layer_crossings
from workbench.runtime.passes.shard_ends import Crossing
from workbench.runtime.passes.shard_stage import Key
from workbench.runtime.updates.shard_weights import Part, layer_parts


class LayerStepping(PlanStepping):
    """The layers of one process; their model makes the initial weights."""

    model: Decomposed

    def _between(
        self, plan: Plan, ends: Sequence[tuple[int, Setting, Setting]]
    ) -> list[list[Crossing]]:
        return [layer_crossings(self.model, at, a.dp, b.dp) for at, a, b in ends]

    def _made(
        self, plan: Plan, settings: Sequence[Setting], weights: Callable[[Key], Tensor],
        dtype: torch.dtype,
    ) -> LayerStage:  # fmt: skip
        groups = self._groups
        own = groups.stage
        return LayerStage(
            self.model, range(*plan.starts[own : own + 2]),
            again=[each.recompute for each in settings], came=self._ends[own],
            goes=self._ends[own + 1], process=groups.process, group=groups.all,
            seed=self._spec.seed, device=self.device, dtype=dtype,
        )  # fmt: skip

    def _all_parts(self, plan: Plan, settings: Sequence[Sequence[Setting]]) -> list[Part]:
        starts = zip(plan.starts, plan.starts[1:], settings, strict=False)
        return layer_parts(self.model, [(range(a, b), own[0].dp) for a, b, own in starts])

    def _weigh(self, counts: Sequence[float], weight: float) -> float:
        """As `PlanStepping._weigh`; on the last stage that of this process's rows, whose mean it
        is."""
        here = self.stage.share(len(counts))
        return float(sum(counts[here.start : here.stop])) if self.stage.last else weight

    def take_up(self, statistics: Mapping[str, Tensor]) -> None:
        super().take_up(statistics)
        self.stage.begin_anew()
