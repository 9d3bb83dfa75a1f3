"""Settings of the optimizer in a user's own loop: torch's own AdamW, without a weight to update.

Schedulers of torch's read and write them there; methods take the learning rate when a step begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.mistakes import in_a_sentence

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer of some parameters."""
NOT_OURS = ("amsgrad", "maximize", "capturable", "differentiable")
"""Flags of torch's AdamW that no method here knows."""


class Settings(torch.optim.AdamW):
    """The group of all trained parameters, without them."""

    _ours = False

    @in_a_sentence()
    def step(self, closure: Callable | None = None) -> None:
        """Raises ValueError where a user's loop calls it."""
        if not self._ours:
            raise ValueError(
                "engine.step(batch, loss_fn) updates the weights; leave engine.optimizer.step() out"
            )

    def stepped(self) -> None:
        """Let schedulers see that a step was made."""
        self._ours = True
        try:
            self.step()
        finally:
            self._ours = False

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise ValueError for a change from what was given that no method here follows."""
        (group,) = self.param_groups
        now = {name: group[name] for name in ("eps", "weight_decay")}
        now |= {"beta1": group["betas"][0], "beta2": group["betas"][1]}
        for name, value in now.items():
            if given[name] != value:
                raise ValueError(
                    f"{name} of the optimizer is {value} now, and was {given[name]}; only the "
                    "learning rate may change (OneCycleLR: cycle_momentum=False)"
                )

    def told(self) -> dict[str, Any]:
        """The learning rate, and what schedulers keep beside it, for a checkpoint."""
        (group,), told = self.param_groups, {}
        for name, value in group.items():
            value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            kept = name == "lr" or name not in {"params", "param_names", *self.defaults}
            if kept:
                with suppress(TypeError, ValueError):  # of what JSON does not know
                    told[name] = json.loads(json.dumps(value, allow_nan=False))
        return told

    def take_up(self, told: Mapping[str, Any]) -> None:
        """Have what a checkpoint tells, as by torch's `load_state_dict`."""
        state = self.state_dict()
        for name, value in told.items():
            state["param_groups"][0][name] = tuple(value) if isinstance(value, list) else value
        self.load_state_dict(state)


def settings_of(
    module: nn.Module, config: Mapping[str, Any], own: MakeOptimizer | None = None
) -> tuple[Settings, frozenset[str]]:
    """Settings by arguments of torch's AdamW, and names of the module's parameters without weight
    decay; of an `own` optimizer, at its learning rate. Raises ValueError for what an optimizer does
    not take, or no method here computes."""
    if not isinstance(config, Mapping):
        given = type(config).__name__
        raise ValueError(f'optimizer_config is a {given}; give a dictionary: {{"lr": 1e-3}}')
    if own is not None:
        return _adamw({"lr": _own_rate(own, config)}), frozenset()
    config = dict(config)
    groups = config.pop("params", None)
    made = _adamw(config)
    if groups is None:
        return made, frozenset()
    common, no_decay = in_common(module, groups, config)
    made.param_groups[0].update(common)
    return made, no_decay


def _own_rate(own: MakeOptimizer, config: Mapping[str, Any]) -> float:
    """The learning rate of an optimizer of the user's own, of which a parameter is given a step."""
    some = nn.Parameter(torch.zeros(1))
    some.grad = torch.zeros(1)
    made, told = own([some]), "beside an optimizer of your own; "
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer makes a {type(made).__name__}; give a function of parameters that makes an "
            "optimizer of torch's, such as lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    kind, rates = type(made).__name__, {group.get("lr") for group in made.param_groups}
    if len(rates) > 1 or None in rates:
        raise ValueError(f"{kind} has the learning rates {rates}; give all its groups one")
    if further := config.keys() - {"lr"}:
        raise ValueError(f"optimizer_config has {min(further)!r} {told}give it to that one")
    (rate,) = map(float, rates)
    if config.get("lr", rate) != rate:
        raise ValueError(f"optimizer_config has lr {config['lr']} {told}that one has {rate}")
    try:
        made.step()
    except TypeError:
        raise ValueError(f"{kind} wants a closure, and no stage has one; use another") from None
    return rate


def _adamw(config: Mapping[str, Any], params: Any = None) -> Settings:
    """Settings; of groups of parameters, for a look at these. Raises
    ValueError for what AdamW does not take, or no method here computes."""
    try:
        made = Settings([nn.Parameter(torch.empty(0))] if params is None else params, **config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer_config is {dict(config)!r}: {error}") from None
    if wrong := [name for name in NOT_OURS if any(group[name] for group in made.param_groups)]:
        raise ValueError(f"{wrong[0]} is on in optimizer_config; no method here computes that")
    return made


def in_common(
    module: nn.Module, groups: Any, config: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """The settings of a module's parameters in groups as torch's AdamW takes them, and the names of
    those that have no weight decay. Raises ValueError for groups that differ in more, for one that
    leaves a parameter out, and for parameters that are none of the module's."""
    made = _adamw(config, groups).param_groups
    every = module.named_parameters(remove_duplicate=False)
    names: dict[int, list[str]] = {}
    for name, parameter in every:
        names.setdefault(id(parameter), []).append(name)
    own = {id(p): group["weight_decay"] for group in made for p in group["params"]}
    if own.keys() - names.keys():
        raise ValueError("params in optimizer_config has a parameter that is none of the model's")
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if lacking := [name for name, parameter in trained if id(parameter) not in own]:
        raise ValueError(
            f"{lacking[0]} is in no group of params in optimizer_config; give it to one, or set "
            "its requires_grad to False"
        )
    decays = {decay for decay in own.values() if decay} or {0.0}
    alike = [{k: v for k, v in g.items() if k not in ("params", "weight_decay")} for g in made]
    if len(decays) > 1 or any(group != alike[0] for group in alike):
        raise ValueError(
            "groups of params in optimizer_config differ in more than that some have no "
            "weight_decay; no method here computes that"
        )
    left_out = frozenset(n for p, decay in own.items() if not decay for n in names[p])
    return alike[0] | {"weight_decay": decays.pop()}, left_out
