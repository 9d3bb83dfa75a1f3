"""Pipeline parallelism with swapping: 1F1B, a stage of layers on every rank."""

from functools import partial

from baselines.swapping import planner
from workbench.core.division import PP
from workbench.methods.rank_driver import on_ranks

check, plan, plan_sizes, train, measure = on_ranks(planner, PP)
fits = partial(planner.fits, mode=PP)
