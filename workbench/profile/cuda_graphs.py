"""Whether the passes of blocks are recorded, so that the GPU launches them, and in what memory.

That pays where one thread cannot launch a block's kernels as fast as the GPU is done with them,
beside the threads of copies and host updates (passes/replay.py has what was seen), and costs the
device the memory of one block's pass. Recordings know addresses only: of a block that draws random
numbers, or does anything else that differs from step to step, there can be none. Whether blocks of
Hugging Face, or layers of a user's module, do, their profile says: it has recorded passes of those
that do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from workbench.core.spec import RunSpec
from workbench.profile.profile import RECORDED_BELOW_S, Profile
from workbench.profile.units import RECORDED, UnitCost


def replays(spec: RunSpec, profile: Profile) -> bool:
    """Whether the spec's blocks are recorded. Raises ValueError for what cannot be."""
    longest = max((cost.forward_s for cost in profile.units[1:-1]), default=math.inf)
    return longest < recorded_below_s(spec, profile)


def recorded_below_s(spec: RunSpec, profile: Profile) -> float:
    """Seconds that the forward pass of a block may take if it is to be recorded: as the spec says,
    else what pays here. Raises ValueError for what cannot be."""
    why_not, hardware = None, profile.hardware
    recorded = [cost.variant(RECORDED) for cost in profile.units[1:-1]]
    if hardware.device != "cuda":
        why_not = f"the device is {hardware.device}"
    elif not spec.model.pure and not (recorded and all(recorded)):
        own = f"layers of the family {spec.model.family} with dropout {spec.model.dropout}"
        why_not = f"{own} vary: their profile has no recorded passes"
    if spec.replay == "on" and why_not:
        raise ValueError(f"replay is on, and {why_not}; it must be auto or off")
    if spec.replay == "on":
        return math.inf
    pays = spec.replay == "auto" and hardware.source == "measured" and not why_not
    return RECORDED_BELOW_S if pays else 0.0


def replay_bytes(
    forwards: Iterable[UnitCost], chains: Iterable[Sequence[tuple[UnitCost, int]]]
) -> int:
    """Bytes in which recordings work, 0 where there are none. `forwards` are blocks' forward
    passes; `chains` are chains of blocks, each block with the bytes of its gradients. Beside the
    largest one there are a buffer for inputs, and one for the gradient of outputs."""
    there = [
        (cost.input_bytes + cost.output_bytes, cost.output_bytes + cost.forward_scratch_bytes)
        for cost in forwards
    ]
    for chain in chains:
        ends = chain[0][0].input_bytes + chain[-1][0].output_bytes
        there.append((ends, _chain_bytes(chain) + max(_fragments(*block) for block in chain)))
    if not there:
        return 0
    return max(ends for ends, _ in there) + max(inside for _, inside in there)


def block_replay_bytes(profile: Profile) -> int:
    """Bytes in which recordings work where each block is a chain of its own."""
    blocks = set(profile.units[1:-1])
    chains = [[(cost, cost.parameters * profile.weight_bytes)] for cost in blocks]
    return replay_bytes(blocks, chains)


def chain_replay_bytes(profile: Profile) -> int:
    """Bytes in which recordings work where all blocks are one chain. What a block keeps leaves gaps
    beside it, until its backward pass."""
    chain = [(cost, cost.parameters * profile.weight_bytes) for cost in profile.units[1:-1]]
    gaps = sum(_fragments(*block) for block in chain) - max(_fragments(*block) for block in chain)
    return replay_bytes((), [chain]) + gaps


def _fragments(cost: UnitCost, gradients: int) -> int:
    """Bytes between the tensors of a block's recordings that no other tensor fits into."""
    return max(0, cost.recorded_bytes - _chain_bytes([(cost, gradients)]))


def _chain_bytes(chain: Sequence[tuple[UnitCost, int]]) -> int:
    live = peak = above = 0
    for cost, _ in chain:
        live += cost.output_bytes + cost.kept_bytes
        peak = max(peak, live + cost.recompute_scratch_bytes)
    for cost, gradients in reversed(chain):
        live -= cost.output_bytes  # counted in the scratch of its backward pass
        peak = max(peak, live + above + cost.input_bytes + gradients + cost.backward_scratch_bytes)
        live -= cost.kept_bytes
        above = cost.input_bytes
    return peak
