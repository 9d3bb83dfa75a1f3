"""Bytes that Harmony should move over the host's link in a step, from its packs alone.

Per task the weights of its pack come once, but for those that a rank has from its last forward task
when its first backward task wants them; per backward pack its gradients leave once, in DP mode each
rank taking its share of them; and the inputs of every backward pack are stashed and fetched, but
for the first pack (tokens) and the fused one. So Harmony-PP moves at most three times the weights
whatever the number of devices, Harmony-DP twice the weights for each device and once more,
both without activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.division import DP, packs_of
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.methods.harmony.packs import Packs


@dataclass(frozen=True, kw_only=True, slots=True)
class Formula:
    """Bytes of a step, all ranks together."""

    weights_in: int
    gradients_out: int
    activations: int
    """Each way."""

    def to_dict(self) -> dict[str, int]:
        """Bytes by ways and by what they are."""
        return {
            "load": self.weights_in + self.activations,
            "store": self.gradients_out + self.activations,
            "weights_in": self.weights_in,
            "gradients_out": self.gradients_out,
            "activations_in": self.activations,
            "activations_out": self.activations,
        }


def formula(spec: RunSpec) -> Formula | None:
    """The formula for a run of Harmony on an untied GPT with pinned packs; None for any other
    run."""
    model = spec.model
    asked = spec.options
    pinned = asked.backward_packs != "auto" and asked.forward_size == asked.backward_size
    if model.family != "gpt" or model.tied or not pinned:
        return None
    packs = Packs(
        mode=spec.method.removeprefix("harmony-"),
        ranks=spec.ranks,
        minibatch=spec.batch,
        forward_size=asked.forward_size,
        backward_size=asked.backward_size,
        forward=packs_of(map(int, asked.forward_packs.split())),
        backward=packs_of(map(int, asked.backward_packs.split())),
    )
    value = VALUE_BYTES[spec.dtype]
    unit_bytes = [value * parameters for parameters in unit_parameters(model)]
    stashed = sum(1 for pack in packs.backward[:-1] if pack.start > 0)
    return Formula(
        weights_in=_weights_in(packs, unit_bytes),
        gradients_out=sum(unit_bytes),
        activations=stashed * spec.batch * model.seq * model.hidden * value,
    )


def unit_parameters(model: ModelSpec) -> list[int]:
    """Parameters of each unit of an untied GPT: embedding, blocks, head."""
    outside = (model.vocab + model.seq) * model.hidden
    head = 2 * model.hidden + model.vocab * model.hidden
    return [outside, *[model.block_parameters] * model.layers, head]


def _weights_in(packs: Packs, unit_bytes: list[int]) -> int:
    total = 0
    for rank in range(packs.ranks):
        tasks = [task for task in packs.tasks if task.rank == rank]
        total += sum(unit_bytes[unit] for task in tasks for unit in task.units)
        forward = [task for task in tasks if task.forward]
        backward = [task for task in tasks if not task.forward]
        if forward and backward:
            stay = set(forward[-1].units) & set(backward[0].units)
            total -= sum(unit_bytes[unit] for unit in stay)
    return total


def bound(method: str, ranks: int) -> float:
    """Host traffic of weights and gradients in a step, in sizes of the weights: 3 for Harmony-PP,
    2 N + 1 for Harmony-DP."""
    return 2.0 * ranks + 1 if method == f"harmony-{DP}" else 3.0
