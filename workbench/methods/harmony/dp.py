"""Harmony-DP: every rank has all packs and its share of the samples."""

from functools import partial

from workbench.core.division import DP
from workbench.methods.harmony import planner
from workbench.training.on_ranks import on_ranks

check, plan, plan_sizes, train, measure = on_ranks(planner, DP)
plan_soon = partial(planner.plan_soon, mode=DP)
