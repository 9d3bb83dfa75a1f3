"""Harmony-PP: packs dealt out to the ranks in turn, outputs sent from device to device."""

from workbench.methods.harmony import planner
from workbench.methods.harmony.mode import method
from workbench.methods.harmony.packs import PP

plan, plan_sizes, train = method(planner, PP)
