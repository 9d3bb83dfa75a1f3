"""Twin-Flow by DeepSpeed (ZeRO-Offload++, 2023): a share of the optimizer stays on the device."""

from baselines.late import weights_of
from baselines.zero_twin_flow.planner import plan
from baselines.zero_twin_flow.run import check, train

__all__ = ["check", "plan", "train", "weights_of"]
