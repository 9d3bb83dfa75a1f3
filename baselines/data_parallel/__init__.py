"""Ordinary data parallelism: the whole model on every device, torch's DistributedDataParallel."""

from baselines.late import refuse_host_activations, training_in
from baselines.parallel_plan import data_parallel as plan
from baselines.stages import check_shares
from workbench.core.spec import RunSpec

__all__ = ["check", "plan", "train"]


def check(spec: RunSpec) -> None:
    """Raise ValueError for ranks without a sample, and activations that would go to the host."""
    check_shares(spec.microbatch, spec.ranks)
    refuse_host_activations(spec, "data parallelism")


train = training_in("baselines.data_parallel.run", check)
