"""Megatron-LM on one device (Shoeybi et al., 2019; Narayanan et al., SC 2021)."""

from baselines.late import reading_in
from baselines.megatron.planner import plan
from baselines.megatron.run import train

__all__ = ["plan", "train", "weights_of"]

weights_of = reading_in("baselines.megatron.reading")
