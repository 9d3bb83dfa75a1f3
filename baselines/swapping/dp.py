"""Data parallelism with swapping: every rank has all layers, and its share of the samples."""

from functools import partial

from baselines.swapping import planner
from workbench.core.division import DP
from workbench.training.on_ranks import on_ranks

check, plan, plan_sizes, train, measure = on_ranks(planner, DP)
fits = partial(planner.fits, mode=DP)
