"""DeepSpeed's pipeline engine: 1F1B over stages, with replicas of each."""

from baselines.deepspeed_pipe.planner import plan, plan_sizes
from baselines.late import training_in

__all__ = ["plan", "plan_sizes", "train"]

train = training_in("baselines.deepspeed_pipe.run")
