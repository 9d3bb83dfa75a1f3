"""Checks and words that plans on several ranks share."""

from __future__ import annotations

from workbench.core.bytesize import format_bytes
from workbench.core.division import DP
from workbench.core.spec import RunSpec
from workbench.model import units_of
from workbench.profile.unit_costs import Sizes
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST, NET_IN, NET_OUT
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import HOST_TIER
from workbench.schedule.simulate import Simulation

LANES = {
    COMPUTE: "compute",
    H2D: "the link to the device",
    D2H: "the link to the host",
    HOST: "the host optimizer",
    NET_OUT: "messages between devices",
    NET_IN: "messages between devices",
}


def check_shares(spec: RunSpec, mode: str) -> None:
    """Raise ValueError where a rank would have no samples, or no layers."""
    if mode == DP and spec.batch < spec.ranks:
        raise ValueError(
            f"a batch of {spec.batch} samples leaves some of {spec.ranks} ranks without any; "
            "give at least one for each, or use fewer ranks"
        )
    if mode != DP and (units := units_of(spec.model)) < spec.ranks:
        raise ValueError(
            f"ranks is {spec.ranks}; the model has {units} units (layers, embedding and head), so "
            f"at most {units} ranks have any"
        )


def check_states(sizes: Sizes, units: int, host_bytes: int) -> None:
    """Raise DoesNotFit, before any schedule is built, where weights and optimizer states of so many
    units alone are more than the host holds."""
    least = sum(sizes.weight_bytes(unit) + sizes.state_bytes(unit) for unit in range(units))
    if least > host_bytes:
        raise DoesNotFit(
            f"more than {format_bytes(least)} of host memory are needed, "
            f"{format_bytes(host_bytes)} are there",
            tier=HOST_TIER,
        )


def binding(simulated: Simulation, ranks: int) -> str:
    """The lane that is busiest on any rank, in words."""
    seconds = simulated.step_seconds
    busy = {
        (rank, lane): simulated.busy_seconds(lane, rank) for rank in range(ranks) for lane in LANES
    }
    (rank, lane), most = max(busy.items(), key=lambda item: item[1])
    return f"{LANES[lane]} of rank {rank}: busy {most / seconds:.0%} of a step of {seconds:.4g} s"
