"""An update that was taken back was as good as never made."""

import pytest
import torch

from tests.unit.runtime.slabs import Slabs, equal, hyper, on_gpu, rounds_like_torch, ulps
from workbench.runtime.updates import adam_step, host_adam
from workbench.runtime.updates.split import join


# Of steps whose gradients are like those before, are much smaller, and dwarf the moments.
@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1.0])
@pytest.mark.parametrize("halves", [False, True])
def test_revert_returns_old_values_to_2_ulp_of_the_larger(backend, halves, scale):
    numel = 300_001
    slabs = Slabs(numel).trained(5).copy(halves=halves)
    old = slabs.states()
    grad, then = (slabs.random(numel) * scale).bfloat16(), hyper(6, lr=1e-4)
    slabs.update(grad, then, decay_split=200_001)
    new = slabs.states()
    slabs.revert(grad, then, decay_split=200_001)
    for was, became, back in zip(old, new, slabs.states(), strict=True):
        assert not torch.equal(was, became)
        assert ulps(back.double() - was.double(), was, became) <= 2
    master, _, exp_avg_sq = (
        (was == back).double().mean() for was, back in zip(old, slabs.states(), strict=True)
    )
    assert master > 0.95
    if scale <= 1e-3:
        assert exp_avg_sq > 0.75


@pytest.mark.parametrize("halves", [False, True])
def test_reverting_the_first_step_leaves_zero_moments(backend, halves):
    """The rest of a sum's rounding is no moment: it would be all that a rare row's next update
    sees."""
    slabs = Slabs(100_003, halves=halves)
    old = slabs.states()
    grad = slabs.random(100_003)
    slabs.update(grad, hyper(), decay_split=50_000)
    slabs.revert(grad, hyper(), decay_split=50_000)
    assert not slabs.exp_avg.any()
    assert not slabs.exp_avg_sq.any()
    torch.testing.assert_close(slabs.master, old[0], rtol=3e-7, atol=1e-9)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_undo_is_revert_and_update_at_once(backend, halves, dtype):
    numel = 100_003
    once = Slabs(numel).trained(3).copy(halves=halves)
    grad = (once.random(numel) * 1e-3).to(dtype)
    wrong, right = hyper(4, grad_scale=0.9, lr=2e-3), hyper(4, grad_scale=0.2)
    once.update(grad, wrong, decay_split=60_001)
    twice = once.copy(halves=halves)
    once.update(grad, right, undo=wrong, decay_split=60_001)
    twice.revert(grad, wrong, decay_split=60_001)
    twice.update(grad, right, decay_split=60_001)
    assert equal(once, twice)


@pytest.mark.parametrize("coefficient", [0.99, 0.5, 0.1, 0.001])
@pytest.mark.parametrize("halves", [False, True])
def test_undo_with_another_scale_equals_the_direct_update(backend, halves, coefficient):
    """Speculative clipping trains as exact clipping does, to rounding of what came between."""
    numel = 300_001
    direct = Slabs(numel).trained(5).copy(halves=halves)
    speculated = direct.copy(halves=halves)
    old = direct.states()
    grad = (direct.random(numel) * 1e-3).bfloat16()
    guess, right = hyper(6, lr=1e-4), hyper(6, lr=1e-4, grad_scale=coefficient)
    direct.update(grad, right, decay_split=200_001)
    speculated.update(grad, guess, decay_split=200_001)
    between = speculated.states()
    speculated.update(grad, right, undo=guess, decay_split=200_001)
    states = zip(old, between, direct.states(), speculated.states(), strict=True)
    for was, guessed, theirs, ours in states:
        assert not torch.equal(guessed, theirs)
        assert ulps(ours.double() - theirs.double(), was, guessed, theirs) <= 4


def test_speculating_every_step_does_not_drift(backend):
    numel = 50_003
    direct, speculated = (Slabs(numel).trained(1).copy(halves=True) for _ in range(2))
    for step in range(2, 32):
        grad = (direct.random(numel) * 1e-3).bfloat16()
        guess, right = hyper(step), hyper(step, grad_scale=1 / (1 + step % 4))
        direct.update(grad, right, decay_split=40_000)
        speculated.update(grad, guess, decay_split=40_000)
        if guess != right:
            speculated.update(grad, right, undo=guess, decay_split=40_000)
    for ours, theirs in zip(speculated.states(), direct.states(), strict=True):
        error = (ours - theirs).abs().max() / theirs.abs().max()
        assert error < 3e-6


def test_a_beta_of_zero_can_be_undone(backend):
    """It has forgotten the old moment, but no later update asks for that."""
    direct = Slabs(10_003).trained(3)
    speculated = direct.copy()
    grad = direct.random(10_003)
    guess = hyper(4, beta1=0.0, beta2=0.0)
    right = hyper(4, beta1=0.0, beta2=0.0, grad_scale=0.5)
    direct.update(grad, right, decay_split=0)
    speculated.update(grad, guess, decay_split=0)
    speculated.update(grad, right, undo=guess, decay_split=0)
    assert torch.equal(speculated.exp_avg, direct.exp_avg)
    assert torch.equal(speculated.exp_avg_sq, direct.exp_avg_sq)
    torch.testing.assert_close(speculated.master, direct.master, rtol=3e-7, atol=1e-9)


@rounds_like_torch
@pytest.mark.parametrize("beta1", [0.9, 0.3])
def test_fallback_reverts_to_the_bit_as_compiled(compiled, monkeypatch, beta1):
    numel = 1 << 18
    ours = Slabs(numel).trained(3)
    theirs = ours.copy()
    grad, then = ours.random(numel) * 1e-3, hyper(4, grad_scale=0.9, beta1=beta1)
    for slabs in (ours, theirs):
        slabs.update(grad, then, decay_split=1 << 17)
    ours.revert(grad, then, decay_split=1 << 17)
    monkeypatch.setattr(host_adam, "_kernel", lambda: None)
    theirs.revert(grad, then, decay_split=1 << 17)
    assert equal(ours, theirs)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[on_gpu, pytest.mark.gpu])])
def test_plain_operations_take_back_what_they_made(device, halves):
    """To 4 ulp: sums and products round apart. They make what the kernel makes, too."""
    host = Slabs(100_003).trained(5).copy(halves=halves)
    weights, *moments = (slab.clone().to(device) for slab in host.slabs())
    rest = host.rest.clone().to(device) if halves else None
    noise = host.random(100_003) * 1e-3
    slabs = (weights, *moments, noise.to(device))
    where = {"decay_split": 70_001, "rest": rest, "chunk": 10_000}
    adam_step.plain_update(*slabs, hyper(6), **where, fused=False)
    master = join(weights, rest) if halves else weights.clone()
    new = [state.cpu() for state in (master, *(moment.clone() for moment in moments))]
    adam_step.plain_update(*slabs, None, **where, fused=False, undo=hyper(6))
    master = join(weights, rest) if halves else weights
    old = host.states()
    host.update(noise, hyper(6), decay_split=70_001)
    back = [state.cpu() for state in (master, *moments)]
    for was, became, again, theirs in zip(old, new, back, host.states(), strict=True):
        assert ulps(again.double() - was.double(), was, became) <= 4
        torch.testing.assert_close(became, theirs, rtol=1e-6, atol=1e-9)


def test_an_update_that_emptied_the_weights_cannot_be_taken_back():
    slabs, grad, then = Slabs(100), torch.zeros(100), hyper(lr=1.0, weight_decay=1.0)
    message = r"lr \* weight_decay is 1.0; the update that it emptied the weights with cannot be"
    with pytest.raises(ValueError, match=message):
        slabs.update(grad, hyper(), undo=then, decay_split=1)
    slabs.revert(grad, then, decay_split=0)  # nothing decayed
