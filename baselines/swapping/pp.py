"""Pipeline parallelism with swapping: 1F1B, a stage of layers on every rank."""

from functools import partial

from baselines.swapping import planner
from workbench.core.division import PP
from workbench.training.on_ranks import on_ranks

check, plan, plan_sizes, train, measure = on_ranks(planner, PP)
fits = partial(planner.fits, mode=PP)
