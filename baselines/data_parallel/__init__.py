"""Ordinary data parallelism: the whole model on every device, torch's DistributedDataParallel."""

from baselines.late import training_in
from baselines.parallel_plan import data_parallel as plan

__all__ = ["plan", "train"]

train = training_in("baselines.data_parallel.run")
