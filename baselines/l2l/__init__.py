"""L2L, run by this project's own runtime under L2L's schedule."""

from baselines.l2l.planner import plan
from workbench.training.on_device import trained_by

train = trained_by(plan)
