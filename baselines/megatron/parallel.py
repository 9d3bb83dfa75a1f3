"""Megatron-LM on several GPUs (Narayanan et al., SC 2021): tp, pp and dp of the real megatron-core.

Its plans are those of Aceso's grid, which has costs of operators; a profile of layers has none.
Imports no torch until a run starts.
"""

from __future__ import annotations

from baselines.late import training_in
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan

__all__ = ["plan", "train"]

train = training_in("baselines.megatron.ranks")


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """Raises ValueError: a profile of layers does not tell what shards of them take."""
    raise ValueError(
        f"{spec.method} divides layers, and a profile of whole layers does not say what their "
        "shards take; `workbench aceso megatron` predicts such plans from profiled operators"
    )
