"""Checks and words that plans on several ranks share."""

from __future__ import annotations

from workbench.core.spec import RunSpec
from workbench.model import units_of
from workbench.schedule.action import COMPUTE, D2H, H2D, HOST, NET_IN, NET_OUT
from workbench.schedule.build.division import DP
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


def binding(simulated: Simulation, ranks: int) -> str:
    """The lane that is busiest on any rank, in words."""
    seconds = simulated.step_seconds
    busy = {
        (rank, lane): simulated.busy_seconds(lane, rank) for rank in range(ranks) for lane in LANES
    }
    (rank, lane), most = max(busy.items(), key=lambda item: item[1])
    return f"{LANES[lane]} of rank {rank}: busy {most / seconds:.0%} of a step of {seconds:.4g} s"
