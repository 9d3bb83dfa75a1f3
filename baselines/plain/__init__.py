"""Plain training in torch, everything on the device: the roof that offloading is measured by."""

from baselines.late import refuse_host_activations, training_in
from baselines.plain.planner import plan
from workbench.core.spec import RunSpec

__all__ = ["check", "plan", "train"]


def check(spec: RunSpec) -> None:
    """Raise ValueError for activations that would go to the host."""
    refuse_host_activations(spec, "plain training", "keeps everything on the device")


train = training_in("baselines.plain_training", check)
