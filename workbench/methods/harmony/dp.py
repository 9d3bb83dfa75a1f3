"""Harmony-DP: every rank has all packs and its share of the samples."""

from workbench.methods.harmony import planner
from workbench.methods.harmony.mode import method
from workbench.methods.harmony.packs import DP

plan, plan_sizes, train = method(planner, DP)
