"""Predictions are torch's own optimizers' steps, with the gradients that formulas assume."""

from __future__ import annotations

import pytest
import torch

from workbench.methods.ftpipe.mitigation import gap_penalty, predict_adam, predict_sgd

RATES = [0.1, 0.0, 0.05, 0.2]


def drawn(*names: str, seed: int = 0) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(5, dtype=torch.float64, generator=made) for _ in names]


def stepped(optimizer, parameter, gradients, rates):
    """The parameter after the optimizer's steps."""
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("steps", [0, 1, 3, 4])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("known", [False, True])
def test_sgd_is_predicted_as_torch_steps(steps, decay, known):
    theta, before, gradient = drawn("theta", "before", "gradient")
    parameter = torch.nn.Parameter(theta.clone())
    sgd = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=decay)
    stepped(sgd, parameter, [before], [0.1])  # a velocity
    now, velocity = parameter.detach().clone(), sgd.state[parameter]["momentum_buffer"].clone()
    found = predict_sgd(
        now, velocity, lr=RATES, momentum=0.9, steps=steps, weight_decay=decay,
        gradient=gradient if known else None,
    )  # fmt: skip
    zero = torch.zeros_like(gradient)
    gradients = [gradient if known and not number else zero for number in range(steps)]
    torch.testing.assert_close(found, stepped(sgd, parameter, gradients, RATES[:steps]))


def test_sgd_without_decay_is_the_published_sum():
    theta, velocity = drawn("theta", "velocity")
    found = predict_sgd(theta, velocity, lr=0.1, momentum=0.9, steps=5)
    factor = (0.9 - 0.9**6) / (1 - 0.9)
    torch.testing.assert_close(found, theta - 0.1 * velocity * factor)
    scaled = predict_sgd(theta, 0.1 * velocity, lr=0.1, momentum=0.9, steps=5, scaled=True)
    torch.testing.assert_close(scaled, found)


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize(
    ("kind", "decoupled", "decay"),
    [
        (torch.optim.Adam, False, 0.0),
        (torch.optim.Adam, False, 0.2),
        (torch.optim.AdamW, True, 0.2),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_adam_is_predicted_as_torch_steps_with_its_second_moment_kept(
    steps, kind, decoupled, decay, known
):
    theta, before, gradient = drawn("theta", "before", "gradient", seed=1)
    parameter = torch.nn.Parameter(theta.clone())
    adam = kind([parameter], lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=decay)
    stepped(adam, parameter, [before], [0.1])
    state, now = adam.state[parameter], parameter.detach().clone()
    square = state["exp_avg_sq"].clone()
    found = predict_adam(
        now, state["exp_avg"].clone(), square, lr=RATES, betas=(0.8, 0.95), eps=1e-3, done=1,
        steps=steps, weight_decay=decay, decoupled=decoupled, gradient=gradient if known else None,
    )  # fmt: skip
    for number, rate in enumerate(RATES[:steps]):
        # What torch's own step makes of the second moment, so that its next value is the old one.
        own = gradient if known and not number else torch.zeros_like(gradient)
        seen = own if decoupled else own + decay * parameter.detach()
        state["exp_avg_sq"].copy_((square - 0.05 * seen**2) / 0.95)
        stepped(adam, parameter, [own], [rate])
    torch.testing.assert_close(found, parameter.detach())


def test_a_gap_of_the_usual_step_halves_the_gradient():
    (velocity,) = drawn("velocity")
    running = (1 - 0.999) * velocity**2
    penalty = gap_penalty(0.5 * velocity, running, count=1, lr_max=0.5, eps=0.0)
    torch.testing.assert_close(penalty, torch.full_like(penalty, 2.0))
    assert (gap_penalty(torch.zeros(5), running, count=3, lr_max=0.5) == 1).all()


def test_numbers_that_cannot_be_are_refused():
    one = torch.ones(1)
    with pytest.raises(ValueError, match="2 rates for 3 steps"):
        predict_sgd(one, one, lr=[1, 2], momentum=0.9, steps=3)
    with pytest.raises(ValueError, match="-1 steps ahead"):
        predict_sgd(one, one, lr=1, momentum=0.9, steps=-1)
    with pytest.raises(ValueError, match="0 steps"):
        gap_penalty(one, one, count=0, lr_max=1.0)
