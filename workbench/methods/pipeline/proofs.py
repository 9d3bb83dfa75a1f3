"""Plans of pipelines: a schedule is written, proved (bytes of every rank too) and simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from workbench.core.bytesize import format_bytes
from workbench.core.spec import RunSpec
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.program import Program
from workbench.methods.rank_plans import binding
from workbench.model import make_model
from workbench.profile.budgets import Budgets
from workbench.profile.cuda_graphs import recorded_below_s
from workbench.profile.match import check_profiles
from workbench.profile.profile import Profile
from workbench.profile.server import Server, ServerCosts, records, server_of, shares_updates
from workbench.profile.unit_costs import ProfiledSizes, profiled_sizes
from workbench.schedule.plan import DoesNotFit, Plan
from workbench.schedule.schedule import DEVICE, DISK, HOST_TIER, Schedule
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A model on a machine: what all pipelines of one run stand on."""

    spec: RunSpec
    sizes: ProfiledSizes
    server: Server
    budgets: Budgets
    profiled: tuple[int, ...]
    """Samples of the micro-batches that were measured, ascending."""
    recorded_below_s: float = 0.0
    """Blocks are recorded where their forward passes take less than so many seconds."""
    normalizes: bool = False
    """Whether the model sees all samples of a micro-batch in statistics."""

    @classmethod
    def of(cls, spec: RunSpec, profiles: Mapping[int, Profile]) -> Ground:
        """The ground of a spec. Raises ValueError for profiles of another model."""
        model = make_model(spec.model)
        check_profiles(profiles, spec, model)
        profile = profiles[min(profiles)]
        server = server_of(profile, spec)
        device = server.device_bytes - Budgets.launched(spec, profile)
        return cls(
            spec=spec,
            sizes=profiled_sizes(model, spec, profiles),
            server=server,
            budgets=Budgets(device=device, host=server.host_bytes),
            profiled=tuple(sorted(profiles)),
            recorded_below_s=recorded_below_s(spec, profile),
            normalizes=model.normalizes,
        )

    def costs(self, schedule: Schedule | None = None) -> ServerCosts:
        """Costs of a schedule's actions, of any method; by default of launched passes."""
        if schedule is None:
            return ServerCosts(self.sizes, self.server, shared_updates=False)
        return ServerCosts(
            self.sizes, self.server, recorded=records(schedule),
            shared_updates=shares_updates(schedule), replicas=schedule.replicas,
        )  # fmt: skip

    def proved(self, line: Pipeline) -> tuple[Schedule, dict[str, int]]:
        """A pipeline's schedule, and the bytes of each tier that no run of it exceeds."""
        schedule = Program(line, self.sizes).schedule()
        proved = validate(schedule).peak_bytes
        return schedule, {
            DEVICE: max(peaks[DEVICE] for peaks in proved.values()),
            HOST_TIER: schedule.mapped_bytes,
            DISK: 0,
        }

    def plan(self, schedule: Schedule, peak: dict[str, int]) -> Plan:
        """The plan of a schedule that fits."""
        simulated = simulate(schedule, self.costs(schedule), steps=STEPS)
        moved = {way: n * schedule.replicas for way, n in schedule.moved_bytes().items()}
        return Plan(
            method=self.spec.method,
            fits=True,
            schedule=replace(schedule, budgets=self.budgets.to_dict()),
            simulated=simulated.events,
            step_seconds=simulated.step_seconds,
            peak_bytes=peak,
            moved_bytes=moved,
            binding=binding(simulated, schedule.num_ranks),
            settings=dict(schedule.settings),
        )

    def lacks(self, tier: str, needed: int) -> str:
        """A sentence about memory that is too small."""
        there = format_bytes(self.budgets.to_dict()[tier])
        return f"{format_bytes(needed)} of {tier} memory are needed, {there} are there"

    def refusal(self, tier: str, needed: int) -> DoesNotFit:
        """The error of a model for which that is the least."""
        return DoesNotFit(self.lacks(tier, needed), tier=tier)
