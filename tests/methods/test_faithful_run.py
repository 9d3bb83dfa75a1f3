"""Ranks under the published rules' choices train as plain training does."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.plain import made_up_profile, spec_for
from workbench.methods.harmony import pp
from workbench.methods.harmony.crew import Crew
from workbench.runtime import checkpoint


@pytest.mark.parametrize("memory", [720_000, None], ids=["packs", "one pack, one idle rank"])
def test_published_choices_train_as_plain_training_does(memory, tmp_path):
    """Where the model fits on one device, the published search leaves the others idle."""
    spec = spec_for(
        method="harmony-pp", batch=8, ranks=2, steps=4, lr_decay_steps=20, packing="faithful",
        device_memory=memory,
    )  # fmt: skip
    profiles = {size: made_up_profile(spec.with_(batch=size)) for size in (1, 8)}
    plan = pp.plan_sizes(spec, profiles)
    packs = plan.settings["backward_packs"].split()
    assert (len(packs) == 1) == (memory is None)
    with closing(Crew(spec, plan.schedule, tmp_path, device="cpu")) as crew:
        crew.run(Silent())
        parameters = checkpoint.parameters(crew.model, crew.states, crew.flats)
        assert_equals_plain(spec, crew, parameters)
