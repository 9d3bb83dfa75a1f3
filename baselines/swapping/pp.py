"""Pipeline parallelism with swapping: 1F1B, a stage of layers on every rank."""

from baselines.swapping import planner
from workbench.methods.harmony.mode import method
from workbench.methods.harmony.packs import PP

plan, plan_sizes, train = method(planner, PP)
