"""Megatron-LM on one device (Shoeybi et al., 2019; Narayanan et al., SC 2021)."""

from baselines.megatron.planner import plan
from baselines.megatron.run import train, weights_of
from workbench.methods.offload.resident import check

__all__ = ["check", "plan", "train", "weights_of"]
