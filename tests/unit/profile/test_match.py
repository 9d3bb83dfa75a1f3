"""A profile of another model is one sentence, in every planner of several ranks."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from baselines import data_parallel
from baselines.swapping import dp as dp_swap
from baselines.swapping import pp as pp_swap
from tests.methods.plain import made_up_profile, spec_for
from tests.methods.torch_named import gpipe
from workbench.core.model_spec import ModelSpec
from workbench.methods.harmony import dp as harmony_dp
from workbench.methods.harmony import pp as harmony_pp
from workbench.model import make_model
from workbench.profile.match import check_profile, check_profiles

METHODS = {
    "harmony-pp": harmony_pp,
    "harmony-dp": harmony_dp,
    "pp-swap": pp_swap,
    "dp-swap": dp_swap,
    "torch-gpipe": gpipe,
    "data-parallel": data_parallel,
}
SPEC = spec_for(batch=4, ranks=2)
PROFILE = made_up_profile(SPEC)
VGG = ModelSpec(family="vgg", layers=5, hidden=4, heads=4, seq=32, vocab=10)


def of(**changes):
    """A profile of a model that differs."""
    return made_up_profile(SPEC.with_(model=replace(SPEC.model, **changes)))


WRONG = {
    "fewer layers": (
        of(layers=4),
        "the profile has costs of 6 units, the model has 7: 5 layers and what comes before and "
        "after them",
    ),
    "more layers": (of(layers=6), "the profile has costs of 8 units, the model has 7"),
    "sequence": (of(seq=8), "the profile is of sequences of 8, the model's are of 16"),
    "dtype": (
        made_up_profile(SPEC.with_(dtype="bf16")),
        "the profile is of weights of 2 bytes, fp32 has 4",
    ),
    "hidden size": (
        of(hidden=64),
        "the profile is of another model: unit 0 (embedding) has 17,408 parameters there and 8,704 "
        "in this one",
    ),
    "parameters": (
        replace(PROFILE, units=(*PROFILE.units[:3], *PROFILE.units[2:3] * 3, PROFILE.units[1])),
        "the profile is of another model: unit 6 (block) has 12,704 parameters there and 64 in "
        "this one",
    ),
    **{
        f"{seconds} seconds": (
            replace(
                PROFILE,
                units=(*PROFILE.units[:3], replace(PROFILE.units[3], recompute_s=seconds))
                + PROFILE.units[4:],
                origin="units-1.json",
            ),
            "the profile units-1.json cannot be planned from: unit 3 (block) has recompute_s "
            f"{seconds}, which must be 0 or more seconds",
        )
        for seconds in (math.nan, math.inf, -1e-3)
    },
    "activations": (
        replace(PROFILE, microbatch=2, origin="units-1.json"),
        "the profile units-1.json is of another model, dtype or micro-batch: 8,192 bytes enter "
        "unit 1 (block) there and 4,096 here",
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_profile_of_another_model_is_one_sentence(method, wrong):
    profile, sentence = WRONG[wrong]
    with pytest.raises(ValueError, match="^" + re.escape(sentence)):
        METHODS[method].plan(SPEC.with_(method=method), profile)


def test_a_profile_of_another_micro_batch_is_one_sentence():
    with pytest.raises(ValueError, match="of micro-batches of 4 samples, and was given for 8"):
        harmony_pp.plan_sizes(SPEC.with_(method="harmony-pp"), {8: PROFILE})
    with pytest.raises(ValueError, match="a profile of at least one micro-batch size"):
        harmony_pp.plan_sizes(SPEC.with_(method="harmony-pp"), {})


def test_what_is_right_passes():
    for spec in (SPEC, SPEC.with_(dtype="bf16"), SPEC.with_(model=replace(SPEC.model, tied=False))):
        check_profiles({4: made_up_profile(spec)}, spec)
        check_profiles({4: made_up_profile(spec)}, spec, make_model(spec.model))


def test_other_families_are_known_by_their_model():
    spec = SPEC.with_(model=VGG)
    profile, model = made_up_profile(spec), make_model(VGG)
    check_profile(profile, spec, model)
    units = (*profile.units[:3], profile.units[4], *profile.units[4:])
    wrong = replace(profile, units=units)
    check_profile(wrong, spec)  # no formula
    with pytest.raises(ValueError, match=r"of another model: unit 3 \(features.4\) has "):
        check_profile(wrong, spec, model)
