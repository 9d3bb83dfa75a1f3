"""STRONGHOLD: a working window of layers on the device, everything else on the host or disk."""

from workbench.methods.driver import trained_by
from workbench.methods.stronghold.planner import Planner, fits, plan

__all__ = ["Planner", "fits", "plan", "train"]

train = trained_by(plan)
