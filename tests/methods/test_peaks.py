"""A run takes what its plan says: never more, within 3 %, and so a budget of just that holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baselines import l2l
from tests.methods.harness import Silent
from tests.methods.plain import MODEL, made_up_profile, spec_for
from workbench.methods import stronghold
from workbench.methods.offload import resident
from workbench.model import make_model
from workbench.profile.alone import Setting
from workbench.profile.footprint import footprints
from workbench.training.run import Training

WIDE = replace(MODEL, layers=4, hidden=96, dropout=0.0)
"""Blocks whose gradients are more than what autograd keeps of a small micro-batch."""


@pytest.mark.parametrize(
    ("method", "micro", "policy"),
    [(resident, 1, "recompute"), (resident, 4, "keep"), (l2l, 4, "auto"), (l2l, 4, "host"),
     (stronghold, 4, "keep"), (stronghold, 4, "recompute"), (stronghold, 1, "host")],
    ids=lambda value: getattr(value, "__name__", str(value)).rpartition(".")[2],
)  # fmt: skip
def test_a_run_holds_in_the_memory_that_its_plan_asks_for(method, micro, policy, tmp_path):
    changes = {"microbatches": micro, "activations": policy, "window": 2, "resident": 1}
    spec = spec_for(model=WIDE, batch=8, steps=3, **changes)
    made_up, size = made_up_profile(spec), (spec.microbatch, WIDE.seq)
    setting = Setting.of_tokens(make_model(WIDE), size, dtype="fp32", device="cpu")
    found, _ = footprints(setting)
    units = tuple(replace(unit, **found[unit.kind]) for unit in made_up.units)
    planned = method.plan(spec, replace(made_up, units=units))
    peak = planned.peak_bytes["device"]
    training = Training(spec.with_(device_memory=peak), planned, tmp_path)
    try:
        training.run(Silent())
        assert 0.97 * peak < training.outcome("test").peak_bytes["device"] <= peak
    finally:
        training.close()
