"""A small GPT and ways to run it: whole, or unit by unit as the runtime does."""

from types import SimpleNamespace

import pytest
import torch

from workbench.model import ModelSpec, make_model
from workbench.model.base import Context


def small_spec(**changes):
    return ModelSpec(**{"layers": 3, "hidden": 32, "heads": 4, "seq": 16, "vocab": 61, **changes})


def run_units(model, tokens, targets, samples, *, seed=5, step=2, recompute=False):
    """Mean loss and gradients by state name of one micro-batch, units run one at a time."""
    device = tokens.device
    modules = [model.build(u, seed=seed, device=device) for u in range(model.num_units)]
    for (unit, name), (owner, owner_name) in model.tied().items():
        modules[unit].get_parameter(name).data = modules[owner].get_parameter(owner_name).data

    def forward(unit, x):
        ctx = Context(seed=seed, step=step, unit=unit, samples=samples)
        last = unit == model.head
        return model.forward(unit, modules[unit], x, ctx, targets if last else None)

    inputs, outputs = [tokens], []
    for unit in range(model.num_units):
        with torch.set_grad_enabled(not recompute):
            outputs.append(forward(unit, inputs[-1]))
        inputs.append(outputs[-1].detach().requires_grad_())
    loss, grad = outputs[-1].detach(), None
    for unit in reversed(range(model.num_units)):
        output = forward(unit, inputs[unit]) if recompute else outputs[unit]
        torch.autograd.backward(output, grad)
        grad = inputs[unit].grad
    grads = {}
    for unit, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            owner = model.tied().get((unit, name), (unit, name))
            state = model.state_name(*owner)
            grads[state] = grads.get(state, 0) + parameter.grad
    return loss, grads


def run_whole(whole, tokens, targets, **context):
    whole.zero_grad()
    loss = whole(tokens, targets, **context)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in whole.named_parameters()}


def assert_same(first, second, tolerance=1e-6):
    (loss_a, grads_a), (loss_b, grads_b) = first, second
    torch.testing.assert_close(loss_a, loss_b, rtol=tolerance, atol=0)
    assert grads_a.keys() == grads_b.keys()
    for name in grads_a:
        torch.testing.assert_close(
            grads_a[name],
            grads_b[name],
            rtol=1e-4,
            atol=tolerance,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def small(request):
    """Makers and runners of small models, on every device there is."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 61, (4, 17)).to(request.param)
    return SimpleNamespace(
        device=request.param,
        make=lambda **changes: make_model(small_spec(**changes)),
        tokens=tokens[:, :-1].contiguous(),
        targets=tokens[:, 1:].contiguous(),
        samples=(8, 9, 10, 11),
        run_units=run_units,
        run_whole=run_whole,
        assert_same=assert_same,
    )
