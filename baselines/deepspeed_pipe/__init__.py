"""DeepSpeed's pipeline engine: 1F1B over stages, with replicas of each."""

from baselines.deepspeed_pipe.planner import check, plan, plan_sizes
from baselines.late import reading_in, training_in

__all__ = ["check", "plan", "plan_sizes", "train", "weights_of"]

train = training_in("baselines.deepspeed_pipe.run", check)
weights_of = reading_in("baselines.deepspeed_pipe.reading")
