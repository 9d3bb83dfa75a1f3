"""A method's doors: the plan is made before, by the search, and trained on ranks.

Its time and memory follow from profiles of operators, with the costs of our own and the simulator.
What needs torch is imported when it is used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workbench.core.bytesize import format_bytes
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.aceso import options
from workbench.methods.aceso.ask import Ask, check_plan
from workbench.methods.aceso.costs import MB
from workbench.methods.aceso.database import WEIGHTS
from workbench.methods.aceso.simulated import simulated
from workbench.methods.aceso.space import Cluster
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan
from workbench.schedule.schedule import DEVICE

PROFILES, PROFILED = "aceso_small.csv.gz", "V100 GPUs of the published small profiles"
"""File of the published profiles, and the devices that they are of."""
SERVER = 8
"""Devices of a node, at most."""


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """Raises ValueError: a profile of layers does not tell what operators take."""
    raise ValueError(
        f"{spec.method} trains a plan whose costs are those of operators, which a profile of "
        "layers does not have; the plan's own search predicts it, and a run measures it"
    )


def foreseen(spec: RunSpec, results: Path, published: Path) -> tuple[Plan, int, str]:
    """The plan that a run trains, its parameters, and the devices for which its time and memory
    are told, by profiles in a folder of what was published. Raises ValueError where these are of
    other models."""
    made = options.narrowed(options.plan_of(spec.options.plan, results), spec)
    options.check(made, spec.ranks)
    each = min(made.gpus, SERVER)
    cluster = Cluster(nodes=-(-made.gpus // each), per_node=each, memory=1.0)
    try:
        costs = Ask(
            subject=made.subject, cluster=cluster, database=published / PROFILES, cost="ours"
        ).costs()
        check_plan(made, costs, cluster)
    except ValueError as error:
        raise ValueError(
            f"time and memory of the plan follow from profiles of its operators: {error}; "
            "workbench aceso cost PLAN --profiled-time-path DIR takes others"
        ) from None
    cost = costs.plan(made)
    peak, (sizes, _) = round(cost.memory * 2**20), costs.table(costs.database.samples[0], 1, 0)
    owned = np.delete(sizes[WEIGHTS], costs.tied[1:] if spec.model.tied else [])
    slowest = cost.times.index(max(cost.times))
    fullest = max(range(len(cost.stages)), key=lambda at: cost.stages[at].memory)
    binding, fits = f"stage {slowest}, the slowest", spec.device_memory is None
    if not fits and not (fits := peak <= spec.device_memory):
        binding = (
            f"device memory: stage {fullest} needs {format_bytes(peak)}, and there are "
            f"{format_bytes(spec.device_memory)}"
        )
    found = Plan(
        method=spec.method, fits=fits, schedule=None, peak_bytes={DEVICE: peak}, moved_bytes={},
        step_seconds=simulated(made, cost.stages) / 1000, binding=binding,
        lacking=None if fits else DEVICE,
        notes=(
            f"{len(made.stages)} stages, micro-batches of {made.micro}; estimated by the profiles' "
            "operators, with gradients' sums and updates",
            f"a run has a vocabulary of {spec.model.vocab:,}, which the plan's file does not say"
            if made.subject.model != "resnet" else
            f"a run has pictures of {spec.model.seq} x {spec.model.seq} and {spec.model.vocab:,} "
            "classes, which the plan's file does not say",
        ),
    )  # fmt: skip
    return found, round(int(owned.sum()) / MB * costs.params_of_mb), PROFILED


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train the spec's plan on its ranks. Raises ValueError for a plan that cannot be trained."""
    from workbench.methods.aceso.run import train

    return train(spec, report, folder)
