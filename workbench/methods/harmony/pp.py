"""Harmony-PP: packs dealt out to the ranks in turn, outputs sent from device to device."""

from functools import partial

from workbench.core.division import PP
from workbench.methods.harmony import planner
from workbench.training.on_ranks import on_ranks

check, plan, plan_sizes, train, measure = on_ranks(planner, PP)
plan_soon = partial(planner.plan_soon, mode=PP)
