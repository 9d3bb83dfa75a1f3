"""ZeRO-Infinity by DeepSpeed (Rajbhandari et al., SC 2021)."""

from baselines.late import weights_of
from baselines.zero_infinity.planner import plan
from baselines.zero_infinity.run import check, train

__all__ = ["check", "plan", "train", "weights_of"]
