"""FSDP2 with its CPU offload: torch's own way to train what does not fit on the device."""

from baselines.fsdp.planner import check, plan
from baselines.late import training_in

__all__ = ["check", "plan", "train"]

train = training_in("baselines.fsdp.run", check)
