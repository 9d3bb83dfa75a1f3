"""A model cut into units trains as the whole one; a unit can be made alone."""

import pytest
import torch

from workbench.model.base import Context
from workbench.model.whole import make_whole


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("recompute", [False, True])
def test_units_equal_whole(small, tied, dropout, recompute):
    model = small.make(tied=tied, dropout=dropout)
    whole = small.run_whole(
        make_whole(model, seed=5, device=small.device),
        small.tokens,
        small.targets,
        step=2,
        samples=small.samples,
    )
    units = small.run_units(model, small.tokens, small.targets, small.samples, recompute=recompute)
    small.assert_same(whole, units)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_checkpointing_changes_nothing(small, dropout):
    model = small.make(dropout=dropout)
    plain, checkpointed = (
        small.run_whole(
            make_whole(model, seed=5, device=small.device, checkpoint=c),
            small.tokens,
            small.targets,
        )
        for c in (False, True)
    )
    small.assert_same(plain, checkpointed, tolerance=1e-7)


def test_a_unit_built_alone_has_the_weights_of_the_whole(small):
    model = small.make()
    state = make_whole(model, seed=9).state_dict()
    for unit in reversed(range(model.num_units)):
        torch.manual_seed(unit)  # must not matter
        named = dict(model.build(unit, seed=9).named_parameters())
        assert model.shapes(unit).keys() == {n for n in named if (unit, n) not in model.tied()}
        for name, shape in model.shapes(unit).items():
            assert named[name].shape == shape
            assert torch.equal(named[name], state[model.state_name(unit, name)])


def test_weights_follow_seed_and_unit_and_leave_the_global_stream_alone(small):
    model = small.make()
    before = torch.get_rng_state()
    first, again, second, other = (
        model.build(unit, seed=seed).attn.c_attn.weight
        for unit, seed in ((1, 7), (1, 7), (2, 7), (1, 8))
    )
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_initial_weights_are_megatrons():
    from workbench.model import ModelSpec, make_model

    block = make_model(ModelSpec(layers=8, hidden=256, heads=4)).build(3, seed=1)
    assert block.attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.mlp.c_proj.weight.std().item() == pytest.approx(0.005, rel=0.02)
    assert block.ln_1.weight.eq(1).all()
    assert block.mlp.c_fc.bias.eq(0).all()


def test_bf16_weights_are_rounded_fp32_ones(small):
    model = small.make()
    fine, coarse = (model.build(2, seed=1, dtype=d) for d in (torch.float32, torch.bfloat16))
    for a, b in zip(fine.parameters(), coarse.parameters(), strict=True):
        assert torch.equal(a.bfloat16(), b)


def test_a_shell_runs_any_unit_of_its_kind_from_a_flat_buffer(small):
    model = small.make()
    empty = model.empty_module(1)
    assert {model.kind(unit) for unit in (1, 2, 3)} == {"block"}
    x = torch.randn(2, 16, 32)
    for unit in (1, 3):
        built = model.build(unit, seed=4)
        flat = torch.cat([p.detach().flatten() for p in built.parameters()])
        start = 0
        for name, shape in model.shapes(unit).items():
            view = flat[start : start + shape.numel()].view(shape)
            empty.get_parameter(name).data = view
            start += shape.numel()
        assert start == len(flat)
        ctx = Context(seed=4, step=0, unit=unit, samples=(0, 1))
        a, b = (model.forward(unit, module, x, ctx) for module in (empty, built))
        assert torch.equal(a, b)


def test_biases_and_norms_do_not_decay(small):
    model = small.make()
    decaying = {n for n in model.shapes(1) if model.decays(1, n)}
    assert decaying == {
        "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight",
    }  # fmt: skip
    assert model.decays(0, "wte.weight")
    assert model.decays(0, "wpe.weight")
    assert model.decays(model.head, "lm_head.weight")
    assert not model.decays(model.head, "ln_f.weight")


def test_flops_of_a_block_are_the_textbook_ones(small):
    h, batch, seq = 32, 4, 16
    expected = 24 * batch * seq * h**2 + 4 * batch * seq**2 * h
    assert small.make().flops(1, batch, seq) == expected


def test_whole_gives_logits_without_targets(small):
    whole = make_whole(small.make(), seed=5, device=small.device)
    logits = whole(small.tokens)
    assert logits.shape == (4, 16, 61)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), small.targets.flatten())
    torch.testing.assert_close(loss, whole(small.tokens, small.targets))
    future = small.tokens.clone()
    future[:, 9:] = 0
    torch.testing.assert_close(whole(future)[:, :9], logits[:, :9])
