"""Plain training on this runtime: what Megatron-LM does on one device, without Megatron."""

from workbench.methods.driver import trained_by
from workbench.methods.resident.planner import plan

train = trained_by(plan, engine="workbench (plain resident training)")
