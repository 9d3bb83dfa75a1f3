"""ZeRO-Offload by DeepSpeed (Ren et al., USENIX ATC 2021)."""

from baselines.late import weights_of
from baselines.zero_offload.planner import plan
from baselines.zero_offload.run import check, train

__all__ = ["check", "plan", "train", "weights_of"]
