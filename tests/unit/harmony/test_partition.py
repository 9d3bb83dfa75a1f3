"""Our partition: equal to trying everything, never worse than a published rule, quick."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.methods.harmony.published.packing import RULES, sizes_of
from workbench.methods.harmony.published.profiles import Direction
from workbench.partition.chain import min_max_partition, min_max_partitions


def slowest(seconds, packs):
    return max(sum(seconds[pack.start : pack.stop]) for pack in packs)


def everything(seconds, count, fits):
    """The smallest largest pack time over all partitions that fit, or None."""
    layers = len(seconds)
    possible = []
    for cuts in combinations(range(1, layers), count - 1):
        packs = [range(a, b) for a, b in pairwise((0, *cuts, layers))]
        if all(fits(pack.start, pack.stop - 1) for pack in packs):
            possible.append(slowest(seconds, packs))
    return min(possible, default=None)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 0.1, 0.7, 5.25]), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_it_equals_trying_everything_under_any_memory_constraint(seconds, rng):
    layers = len(seconds)
    allowed = {
        (first, last): rng.random() < 0.7
        for first in range(layers)
        for last in range(first, layers)
    }

    assert_best(seconds, lambda first, last: allowed[first, last])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 0.1, 5.25]), min_size=1, max_size=8),
    st.lists(st.integers(0, 9), min_size=8, max_size=8),
    st.integers(4, 40),
)
def test_it_does_where_all_parts_of_what_fits_fit_too(seconds, sizes, capacity):
    def fits(first, last):
        return sum(sizes[first : last + 1]) <= capacity

    assert_best(seconds, fits)
    counts = range(1, len(seconds) + 1)
    known = min_max_partitions(seconds, counts, fits, even=True)
    assert known == min_max_partitions(seconds, counts, fits)


def assert_best(seconds, fits):
    layers = len(seconds)
    found = min_max_partitions(seconds, range(1, layers + 1), fits)
    for count in range(1, layers + 1):
        best = everything(seconds, count, fits)
        packs = found.get(count)
        assert (packs is None) == (best is None)
        assert min_max_partition(seconds, count, fits) == packs
        if packs is None:
            continue
        assert slowest(seconds, packs) == pytest.approx(best, abs=1e-12)
        assert [layer for pack in packs for layer in pack] == list(range(layers))
        assert len(packs) == count
        assert all(packs)
        assert all(fits(pack.start, pack.stop - 1) for pack in packs)


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 20), st.integers(1, 9)),
        min_size=1,
        max_size=14,
    ),
    st.integers(20, 200),
    st.sampled_from(sorted(RULES)),
)
def test_it_is_never_slower_than_a_published_rule(layers, capacity, rule):
    memory, inputs, seconds = zip(*layers, strict=True)
    theirs = RULES[rule](memory, inputs, seconds, capacity)
    if theirs is None:
        return

    def fits(first, last):
        x = inputs[first] if rule.endswith("addx") or rule == "balanced_time" else 0
        return sum(memory[first : last + 1]) + x <= capacity

    ours = min_max_partition(seconds, len(theirs), fits)
    assert slowest(seconds, ours) <= slowest(seconds, theirs)


def test_more_packs_are_never_slower_where_any_pack_fits():
    seconds = [3, 1, 4, 1, 5, 9, 2, 6]
    found = min_max_partitions(seconds, range(1, 9), lambda first, last: True)
    times = [slowest(seconds, found[count]) for count in range(1, 9)]
    assert times == sorted(times, reverse=True)
    assert times[2] == 14
    assert sizes_of(found[3]) == (4, 2, 2), "later packs are as long as 14 s allow"


def test_what_cannot_be_is_refused_or_left_out():
    assert min_max_partitions([1, 2], (1, 2), lambda first, last: first == last).keys() == {2}
    assert min_max_partition([1, 2], 1, lambda first, last: False) is None
    with pytest.raises(ValueError, match="2 layers cannot be cut into 3 to 3 packs"):
        min_max_partition([1, 2], 3, lambda first, last: True)
    with pytest.raises(ValueError, match="times from 0 s on"):
        min_max_partition([1, -2], 1, lambda first, last: True)


def test_515_layers_are_cut_into_all_numbers_of_packs(profile_of, answered):
    costs = profile_of("resnet1026").at(Direction.BACKWARD, 32)
    with answered("harmony: 515 layers cut into all numbers of packs", 10, "process"):
        found = min_max_partitions(
            costs.seconds,
            range(1, 516),
            lambda first, last: costs.memory(range(first, last + 1)) <= 9e9,
        )
    assert max(found) == 515
    whole = sum(costs.seconds)
    assert slowest(costs.seconds, found[16]) < 1.03 * whole / 16
