"""However layers and samples are divided among ranks, they train as plain training does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.methods import plain
from tests.methods.harness import Silent, assert_equals_plain
from tests.methods.test_modules import RESNET, assert_equals_original, crew_for, packs_for
from tests.methods.test_ranks import MODEL, PACKS, assert_moved, spec_for, trained
from workbench.schedule.action import Kind
from workbench.schedule.build.division import packs_of

SINGLE = replace(PACKS, forward=packs_of([1] * 5), backward=packs_of([1] * MODEL.units))
"""One layer a pack, in both directions."""


@pytest.mark.parametrize("mode", ["pp", "dp"])
def test_four_ranks_with_one_layer_a_pack(mode, tmp_path):
    """Six samples: replicas have two or one, and pass their gradients to each other by gloo."""
    packs, spec = replace(SINGLE, mode=mode, ranks=4), spec_for(steps=3)
    crew, parameters = trained(packs, spec, tmp_path, "delays")
    assert_equals_plain(spec, crew, parameters)
    assert_moved(crew, spec.steps)
    kinds = {action.kind for action in crew.schedule.actions}
    assert (Kind.REDUCE in kinds, Kind.SEND in kinds) == (mode == "dp", mode == "pp")
    assert {action.rank for action in crew.schedule.actions} == {0, 1, 2, 3}


@pytest.mark.parametrize("mode", ["pp", "dp"])
def test_one_rank_with_one_layer_a_pack(mode, tmp_path):
    """Passes that divide the samples differently, and nobody to talk to."""
    packs = replace(SINGLE, mode=mode, ranks=1, forward_size=4, backward_size=1)
    spec = spec_for(steps=3)
    crew, parameters = trained(packs, spec, tmp_path, "delays")
    assert_equals_plain(spec, crew, parameters)
    assert_moved(crew, spec.steps)


def test_batch_statistics_of_uneven_micro_batches(tmp_path):
    """Five samples in micro-batches of two: the last one counts for a fifth of the gradients, and
    for as much as the others in running statistics."""
    spec = plain.spec_for(model=RESNET, text="stdlib", batch=5, steps=3)
    packs = packs_for(spec)
    assert [end - first for first, end in packs.tasks[0].micros] == [2, 2, 1]
    with crew_for(packs, spec, tmp_path) as crew:
        crew.run(Silent())
        assert_equals_original(spec, crew, packs.backward_size)
