"""However layers and samples are divided among ranks, they train as plain training does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.methods import plain
from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.test_modules import RESNET, assert_equals_original, crew_for, packs_for
from tests.methods.test_ranks import MODEL, PACKS, assert_moved, spec_for, trained
from workbench.core.division import packs_of
from workbench.schedule.action import Kind

SINGLE = replace(PACKS, forward=packs_of([1] * 5), backward=packs_of([1] * MODEL.units))
"""One layer a pack, in both directions."""


@pytest.mark.parametrize("mode", ["pp", "dp"])
@pytest.mark.parametrize("how", [{"ranks": 4}, {"ranks": 1, "forward_size": 4, "backward_size": 1}])
def test_one_layer_a_pack(mode, how, tmp_path):
    """Six samples: four replicas have two or one, and pass their gradients to each other by gloo; a
    rank alone divides the samples differently in its passes, and has nobody to talk to."""
    packs, spec = replace(SINGLE, mode=mode, **how), spec_for(steps=3)
    crew, parameters = trained(packs, spec, tmp_path, "delays")
    assert_equals_plain(spec, crew, parameters)
    assert_moved(crew, spec.steps)
    kinds, four = {action.kind for action in crew.schedule.actions}, packs.ranks == 4
    assert (Kind.REDUCE in kinds) == (four and mode == "dp")
    assert (Kind.SEND in kinds) == (four and mode == "pp")
    assert {action.rank for action in crew.schedule.actions} == {*range(packs.ranks)}


def test_batch_statistics_of_uneven_micro_batches(tmp_path):
    """Five samples in micro-batches of two: the last one counts for a fifth of the gradients, and
    for as much as the others in running statistics."""
    spec = plain.spec_for(model=RESNET, text="stdlib", batch=5, steps=3)
    packs = packs_for(spec)
    assert [end - first for first, end in packs.tasks[0].micros] == [2, 2, 1]
    with crew_for(packs, spec, tmp_path) as crew:
        crew.run(Silent())
        assert_equals_original(spec, crew, packs.backward_size)
