"""STRONGHOLD: a working window of layers on the device, everything else on the host or disk."""

from workbench.methods.stronghold.planner import Planner, fits, plan, plan_roughly
from workbench.training.on_device import trained_by

__all__ = ["Planner", "fits", "plan", "plan_roughly", "train"]

train = trained_by(plan)
