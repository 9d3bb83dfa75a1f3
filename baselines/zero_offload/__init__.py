"""ZeRO-Offload by DeepSpeed (Ren et al., USENIX ATC 2021)."""

from baselines.late import weights_of
from baselines.zero_offload.planner import plan
from baselines.zero_offload.run import train

__all__ = ["plan", "train", "weights_of"]
