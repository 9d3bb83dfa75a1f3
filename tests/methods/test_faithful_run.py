"""Ranks under the published rules' choices train as plain training does."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.plain import made_up_profile, spec_for
from tests.methods.rank_server import process
from workbench.methods.harmony import pp
from workbench.model import make_model
from workbench.profile.alone import Setting
from workbench.profile.footprint import footprints
from workbench.runtime.checkpoint import checkpoint
from workbench.training.rank_processes import RankTraining


def weighed(spec):
    """Invented times, and the bytes that layers really need: by them a plan keeps its budget."""
    model, made_up = make_model(spec.model), made_up_profile(spec)
    size = spec.microbatch, spec.model.seq
    found, _ = footprints(Setting.of_tokens(model, size, dtype="fp32", device="cpu"))
    units = tuple(replace(unit, **found[unit.kind]) for unit in made_up.units)
    return replace(made_up, units=units, hardware=replace(made_up.hardware, source="measured"))


@pytest.mark.parametrize("memory", [800_000, None], ids=["packs", "one pack, one idle rank"])
def test_published_choices_train_as_plain_training_does(memory, tmp_path):
    """Where the model fits on one device, the published search leaves the others idle."""
    spec = spec_for(
        method="harmony-pp", batch=8, ranks=2, steps=4, lr_decay_steps=20, packing="faithful",
        device_memory=memory,
    )  # fmt: skip
    profiles = {size: weighed(spec.with_(batch=size)) for size in (1, 8)}
    plan = pp.plan_sizes(spec, profiles)
    packs = plan.settings["backward_packs"].split()
    assert (len(packs) == 1) == (memory is None)
    how = {"device": "cpu", "process": process("")}
    with closing(RankTraining(spec, plan.schedule, tmp_path, **how)) as crew:
        crew.run(Silent())
        assert all(result["device_peak"] <= plan.peak_bytes["device"] for result in crew.results())
        parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
        assert_equals_plain(spec, crew, parameters)
