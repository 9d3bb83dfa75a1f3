"""Megatron-LM on several GPUs (Narayanan et al., SC 2021): tp, pp and dp of the real megatron-core.

Its shapes are those of Aceso's grid, which has costs of operators. Imports no torch until a run
starts.
"""

from __future__ import annotations

from pathlib import Path

from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.profile.profile import Profile
from workbench.schedule.plan import Plan


def plan(spec: RunSpec, profile: Profile) -> Plan:
    """Raises ValueError: a profile of layers does not tell what shards of them take."""
    raise ValueError(
        f"{spec.method} divides layers, and a profile of whole layers does not say what their "
        "shards take; `workbench aceso megatron` predicts its shapes from profiled operators"
    )


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train on the spec's ranks; the first of the last stage tells of the steps. Raises ValueError
    where megatron-core cannot compute, RankFailed."""
    spec.options.settled(spec, folder)
    from workbench.training import trained_ranks

    teller = spec.ranks - spec.ranks // spec.options.pp
    return trained_ranks.train("baselines.megatron.ranks", spec, report, folder, teller=teller)
