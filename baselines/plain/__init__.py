"""Plain training in torch, everything on the device: the roof that offloading is measured by."""

from functools import partial

from baselines.late import refuse_host_activations, training_in
from baselines.plain.planner import plan

__all__ = ["check", "plan", "train"]

check = partial(
    refuse_host_activations, label="plain training", does="keeps everything on the device"
)
train = training_in("baselines.plain_training", check)
