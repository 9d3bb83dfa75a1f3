"""Weights of one stage: their gradients in one flat tensor, equal values on all who hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.core.stage_map import StageMap
from workbench.model.slices import Slices
from workbench.runtime.passes.stage import Stage
from workbench.runtime.transport.neighbours import group
from workbench.runtime.updates.step_end import Tie

Held = dict[int, list[str]]
"""Stage -> names there of one weight that several stages hold, or one under two names."""


def copies(
    slices: Slices, stages: Sequence[Iterable[int]], pairs: Sequence[tuple[str, str]]
) -> list[Held]:
    """Weights that are in the model more than once: one parameter that several stages use, and
    pairs of parameters that the user names. Raises ValueError for names that are none."""
    holders = slices.holders(stages)
    held = {name: {stage: [name] for stage in those} for name, those in holders.items()}
    for pair in pairs:
        if unknown := [name for name in pair if name not in slices.aliases]:
            raise ValueError(f"shared_weights names {unknown[0]!r}, which is no parameter")
        one, other = (slices.aliases[name] for name in pair)
        if one == other:  # the module shares it by itself
            continue
        for stage, names in held.pop(other).items():
            held[one].setdefault(stage, []).extend(names)
    return [one for one in held.values() if sum(map(len, one.values())) > 1]


class StageWeights:
    """Parameters of a process's stages and their gradients."""

    def __init__(
        self, stages: Sequence[Stage], learning: Mapping[str, bool], into: Tensor | None = None
    ) -> None:
        """`learning`: whether a parameter, by its name, is trained at all. `into`: zeros for the
        gradients, flat, where others lie beside them."""
        self.named = {name: p for one in stages for name, p in one.named_parameters().items()}
        for name, parameter in self.named.items():
            parameter.requires_grad_(learning[name])
        self._trained = [p for name, p in self.named.items() if learning[name]]
        sizes = [parameter.numel() for parameter in self._trained]
        if into is None:
            into = torch.zeros(sum(sizes), device=stages[0].device)
        self.gradients = into  # [parameters]
        """Of all that is trained, flat, of torch's default precision, as the weights are: fp32
        unless a script has set fp64, whatever passes compute in."""
        parts = zip(self.gradients.split(sizes), self._trained, strict=True)
        self._views = [part.view(parameter.shape) for part, parameter in parts]
        self.attach()

    def attach(self) -> None:
        """Make each parameter's `grad` a view of the flat gradients, whatever became of it."""
        for parameter, view in zip(self._trained, self._views, strict=True):
            if parameter.grad is not view:
                parameter.grad = view

    @torch.no_grad()
    def spread(
        self, replicas: dist.ProcessGroup | None, first: int, buffers: Sequence[Tensor]
    ) -> None:
        """Give all replicas the first one's weights and buffers; `first` is its rank."""
        if replicas is None:
            return
        for tensor in (*self.named.values(), *buffers):
            dist.broadcast(tensor.data, first, group=replicas)

    @torch.no_grad()
    def ties(
        self, shared: Sequence[Held], places: StageMap, stage: int, replica: int, backend: str
    ) -> list[Tie]:
        """The weights shared with other stages, or held twice here; all begin with the values of
        the first stage's first name."""
        found = []
        for held in shared:
            groups = [
                group([places.rank(one, number) for one in held], backend)
                for number in range(places.replicas)
            ]
            if stage not in held:
                continue
            others = groups[replica]
            own = [self.named[name] for name in held[stage]]
            if others is not None:
                dist.broadcast(own[0].data, places.rank(min(held), replica), group=others)
            for other in own[1:]:
                other.copy_(own[0])
            if own[0].grad is not None:
                further = [each.grad for each in own[1:]]
                found.append(Tie(own[0].grad, others, further, stage == min(held)))
        return found
