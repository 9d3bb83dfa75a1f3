"""Costs of micro-batches that nobody measured, from those that somebody did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.methods.plain import made_up_profile, spec_for
from workbench.profile.profile import Profile
from workbench.profile.unit_costs import ProfiledSizes
from workbench.profile.units import CHECKPOINT, HALVES, CostsBySize, Variant


def measured(samples: int, forward_s: float) -> Profile:
    profile = made_up_profile(spec_for(batch=samples, microbatches=1))
    units = tuple(replace(unit, forward_s=forward_s) for unit in profile.units)
    return replace(profile, units=units)


def test_between_two_sizes_and_beyond_them_costs_follow_the_line():
    sizes = ProfiledSizes({1: measured(1, 1.0), 3: measured(3, 2.0)}, tied={})
    assert [sizes.cost(1, samples).forward_s for samples in (1, 2, 3, 5)] == [1.0, 1.5, 2.0, 3.0]


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 7, 50])
def test_noise_makes_no_size_faster_than_a_smaller_one(samples):
    """Two points that fall would lead below zero; and small passes, once measured beside something
    that kept the processor busy, made a plan of large ones."""
    sizes = ProfiledSizes({1: measured(1, 2.0), 3: measured(3, 1.9)}, tied={})
    assert sizes.cost(1, samples).forward_s == pytest.approx(1.9)


def test_variants_follow_the_line_where_both_sizes_have_them():
    small, large = (
        replace(
            measured(1, 1.0).units[1],
            variants=(Variant(name=HALVES, seconds=(s, s), scratch_bytes=(4, 2), nbytes=10 * s),),
        )
        for s in (1, 3)
    )
    known = Variant(name=CHECKPOINT, seconds=(1.0,), scratch_bytes=(1,))
    small = replace(small, variants=(*small.variants, known))
    (found,) = CostsBySize({1: [small], 3: [large]}).of(0, 2).variants
    assert found == Variant(name=HALVES, seconds=(2, 2), scratch_bytes=(4, 2), nbytes=20)


def test_a_variant_has_its_number_of_passes():
    with pytest.raises(ValueError, match="'halves' has"):
        Variant(name=HALVES, seconds=(1.0,))
