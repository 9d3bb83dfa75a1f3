"""Data parallelism with swapping: every rank has all layers, and its share of the samples."""

from baselines.swapping import planner
from workbench.methods.harmony.mode import method
from workbench.methods.harmony.packs import DP

plan, plan_sizes, train = method(planner, DP)
