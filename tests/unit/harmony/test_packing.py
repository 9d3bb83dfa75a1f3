"""The published packing rules and the micro-batch converter."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.methods.harmony.published.microbatches import converted, shares, split
from workbench.methods.harmony.published.packing import RULES, manual, packs_of, reuse, sizes_of

MEMORY = (10, 50, 40, 30, 20, 60, 10, 10)
INPUTS = (5, 8, 8, 8, 8, 8, 8, 2)
SECONDS = (1, 4, 4, 3, 2, 6, 1, 1)


def packed(rule, capacity):
    packs = RULES[rule](MEMORY, INPUTS, SECONDS, capacity)
    return None if packs is None else sizes_of(packs)


@pytest.mark.parametrize(
    ("rule", "at_90", "at_100", "at_130"),
    [
        ("greedy", (2, 2, 2, 2), (2, 3, 3), (3, 4, 1)),
        ("greedy_addx", (2, 2, 2, 2), (2, 3, 3), (3, 4, 1)),
        ("greedy_reverse_addx", (2, 1, 2, 3), (2, 3, 3), (1, 3, 4)),
        ("balanced_addx", (1, 1, 2, 1, 3), (2, 3, 3), (2, 3, 3)),
        ("balanced_time", (2, 1, 2, 3), (2, 3, 3), (2, 3, 3)),
    ],
)
def test_rules_pack_as_published(rule, at_90, at_100, at_130):
    assert (packed(rule, 90), packed(rule, 100), packed(rule, 130)) == (at_90, at_100, at_130)
    assert packed(rule, 300) == (8,)


@pytest.mark.parametrize("rule", RULES)
def test_a_layer_that_fits_nowhere_gives_no_packs(rule):
    assert packed(rule, 50) is None


def test_greedy_stays_below_the_capacity_and_balanced_may_reach_it():
    assert packed("greedy", 230) == (7, 1)
    assert packed("greedy_reverse", 230) == (1, 7)
    assert packed("balanced", 230) == (8,)
    assert packed("balanced_addx", 235) == (8,)


def test_reuse_takes_packs_that_stay_below_the_capacity():
    packs = packs_of((3, 4))
    assert reuse(packs, MEMORY, INPUTS, 129) == packs
    assert reuse(packs, MEMORY, INPUTS, 128) is None


def test_manual_packs_leave_the_rest_first_or_last():
    assert sizes_of(manual(28, 4)) == (4,) * 7
    assert sizes_of(manual(28, 5)) == (3, 5, 5, 5, 5, 5)
    assert sizes_of(manual(28, 5, rest_last=True)) == (5, 5, 5, 5, 5, 3)
    with pytest.raises(ValueError, match="packs of 29 layers"):
        manual(28, 29)


def test_vectors_of_the_artifact(published):
    vectors = json.loads((published / "packer_vectors.json").read_text())
    given = vectors["packing"]
    for case in given["cases"]:
        for rule in case.keys() - {"capacity"}:
            packs = RULES[rule](
                given["layer_memory"], given["layer_input_x"], given["layer_time"], case["capacity"]
            )
            assert list(sizes_of(packs)) == case[rule], (rule, case["capacity"])
    for case in vectors["manual"]:
        packs = manual(case["layers"], case["pack_size"], rest_last="variant" in case)
        assert list(sizes_of(packs)) == case["pack_sizes_bwd"]
        if "pack_sizes_fwd" in case:
            assert list(sizes_of(packs[:-1])) == case["pack_sizes_fwd"]
    for case in vectors["microbatch_converter"]:
        found = converted(tuple(case["forward_microbatches"]), case["u_bwd"])
        assert [list(sizes) for sizes in found] == case["emitted_per_forward_microbatch"]


layers = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=12
)


@given(layers, st.integers(1, 200), st.sampled_from(sorted(RULES)))
def test_packs_cover_all_layers_and_respect_the_capacity(layers, capacity, rule):
    memory, inputs, seconds = zip(*layers, strict=True)
    packs = RULES[rule](memory, inputs, seconds, capacity)
    if packs is None:
        return
    assert [layer for pack in packs for layer in pack] == list(range(len(layers)))
    for pack in packs:
        held = sum(memory[layer] for layer in pack)
        if rule.endswith("addx") or rule == "balanced_time":
            held += inputs[pack.start]
        assert held < capacity or (rule.startswith("balanced") and held == capacity)


@given(layers, st.integers(1, 200))
def test_greedy_finds_packs_wherever_every_layer_fits_alone(layers, capacity):
    memory, inputs, seconds = zip(*layers, strict=True)
    assume(all(held + x < capacity for held, x in zip(memory, inputs, strict=True)))
    assert RULES["greedy_addx"](memory, inputs, seconds, capacity) is not None
    assert RULES["greedy_reverse_addx"](memory, inputs, seconds, capacity) is not None


@given(layers)
def test_greedy_finds_none_where_a_layer_is_too_large_without_its_input(layers):
    memory, inputs, seconds = zip(*layers, strict=True)
    assert RULES["greedy_addx"](memory, inputs, seconds, max(memory)) is None
    assert RULES["greedy_reverse_addx"](memory, inputs, seconds, max(memory)) is None


@pytest.mark.parametrize(
    ("sizes", "size", "emitted"),
    [
        ((4, 4, 1), 2, ((2, 2), (2, 2), (1,))),
        ((4, 4, 4, 1), 3, ((3,), (3,), (3, 3), (1,))),
        ((2, 2, 2, 2, 1), 4, ((), (4,), (), (4,), (1,))),
    ],
)
def test_the_converter_emits_what_is_complete(sizes, size, emitted):
    assert converted(sizes, size) == emitted


@given(st.integers(1, 60), st.data())
def test_converted_micro_batches_are_those_of_the_other_size(samples, data):
    u_forward, u_backward = (data.draw(st.integers(1, samples)) for _ in range(2))
    emitted = converted(split(samples, u_forward), u_backward)
    assert sum(emitted, ()) == split(samples, u_backward)


def test_shares_differ_by_one_and_leave_no_gpu_without_samples():
    assert shares(10, 4) == (3, 3, 2, 2)
    with pytest.raises(ValueError, match="3 samples leaves some of 4 GPUs"):
        shares(3, 4)
    with pytest.raises(ValueError, match="micro-batches of 5"):
        split(4, 5)
