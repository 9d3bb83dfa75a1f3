"""Plain training in torch, everything on the device: the roof that offloading is measured by."""

from baselines.late import training_in
from baselines.plain.planner import plan

__all__ = ["plan", "train"]

train = training_in("baselines.plain_training")
