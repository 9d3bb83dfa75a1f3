"""Stages and plans of DeepSpeed's pipeline: its 1F1B, and the memory that its engine holds.

* A rank has one buffer for what it receives and one for gradients. Of each micro-batch in flight it
  has the input twice, since the stage gets a copy.
* In bf16 gradients are added up in fp32, 4 bytes; masters and moments are divided among replicas.
* At the end of a step tied weights' gradients are added up over both stages, which each update
  their own; then all over replicas, for which DeepSpeed copies them, also where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from baselines.late import refuse_host_activations
from baselines.parallel_plan import plan_of
from baselines.parallel_step import Step, line_of
from baselines.stages import check_stages, cut
from workbench.core.division import packs_of
from workbench.core.spec import RunSpec
from workbench.methods.pipeline.orders import in_flight, lists
from workbench.profile.match import check_profiles
from workbench.profile.profile import Profile
from workbench.profile.unit_costs import ProfiledSizes
from workbench.schedule.action import HOST, NET_OUT, Kind
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import Schedule

LABEL = "DeepSpeed's pipeline"
BUCKET_ELEMENTS = 500_000_000
"""Gradients that are copied and added up at once."""
COPIED = "copied gradients"
TIED = 3
"""Turn of the sum of a tied weight's gradients."""


def check(spec: RunSpec) -> None:
    """Raise ValueError for stages that the model has not, and activations on the host."""
    refuse_host_activations(spec, LABEL)
    check_stages(spec, spec.ranks // spec.options.copies)


def stages_of(
    spec: RunSpec, flops: Sequence[float], parameters: Sequence[int]
) -> tuple[range, ...]:
    """The units of each stage, from the forward operations and the parameters of each unit. Raises
    ValueError as `check`."""
    check(spec)
    if given := spec.options.given_stages:
        return tuple(packs_of(given))
    positions = spec.ranks // spec.options.copies
    return cut(flops, parameters, positions, recompute=spec.activations != "keep")


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """The plan from one profile; other micro-batch sizes in proportion."""
    return plan_sizes(spec, {profile.microbatch: profile})


def plan_sizes(spec: RunSpec, profiles: Mapping[int, Profile]) -> Plan:
    """The plan from profiles by samples in a micro-batch."""
    check_profiles(profiles, spec)
    profile = profiles[min(profiles)]
    units = profile.units
    stages = stages_of(spec, [unit.flops for unit in units], [unit.parameters for unit in units])
    return plan_of(_Step(spec, profiles, stages), "DeepSpeed")


class _Step(Step):
    """One step of a replica, as DeepSpeed runs it."""

    norms = HOST  # on a device it would follow the sums of that device alone, by the rules of sums

    def __init__(
        self, spec: RunSpec, profiles: Mapping[int, Profile], stages: tuple[range, ...]
    ) -> None:
        self.copies = spec.options.copies
        one = spec.with_(
            batch=spec.batch // self.copies, ranks=len(stages), replicas=1, stages="auto"
        )
        line = line_of(one, lists("1f1b", one.ranks, one.microbatches), stages)
        sizes = ProfiledSizes(profiles, tied={})
        super().__init__(one, profiles[min(profiles)], replace(line, replicas=self.copies), sizes)
        if spec.dtype == "bf16":
            self.updaters, self.state_bytes = self.copies, 2 + 4 + 12 / self.copies

    def schedule(self) -> Schedule:
        """The step of all replicas."""
        found = super().schedule()
        return replace(found, settings={**found.settings, "replicas": self.copies})

    def _received(self, rank: int) -> tuple[int, int]:
        return 1 + 2 * in_flight(self.line.passes[rank]), 1

    def _borrowed_bytes(self) -> int:
        return round(self.state_bytes * self.borrowed / self.profile.weight_bytes)

    def _reduce(self, rank: int, ready: str) -> str:
        stage, shared = self.line.stages[rank], self.borrowed // self.profile.weight_bytes
        elements = sum(self.profile.units[unit].parameters for unit in stage)
        if self.tied and rank in (0, self.line.depth - 1):
            elements += shared if rank else 0
            ready = self.put(Kind.REDUCE, 0, rank, NET_OUT, [ready], turn=TIED, nbytes=4 * shared)
        for unit in stage:
            draft = self._sum(unit, rank, ready)
            if unit == stage[0]:
                self.make(draft, COPIED, self._copied_bytes(elements))
            draft.reads.append(COPIED)
            self.write(draft)
            ready = draft.name
        return ready

    def _copied_bytes(self, elements: int) -> int:
        """Bytes of the copies in which a rank's gradients are added up. In fp32 they are many
        tensors, copied a bucket at a time; in bf16 a long one, of which a copy in bf16 is sent, and
        a short one, and both are copied together first if they fit a bucket."""
        if self.spec.dtype == "fp32":
            return 4 * min(elements, BUCKET_ELEMENTS)
        return (6 if elements <= BUCKET_ELEMENTS else 2) * elements

    def _return_tied(self, rank: int, ready: str) -> None:
        """Sends nothing: both stages have updated it."""
