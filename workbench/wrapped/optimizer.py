"""The optimizer of an ordinary loop: settings for schedulers, and the end of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from workbench.core.mistakes import in_a_sentence

SETTINGS = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")
"""Settings of torch's AdamW that an engine is given."""
_KEPT = {"params", "weight_decay"}
"""Settings in which groups may differ."""


class Loop(Protocol):
    """A wrapped model, as its optimizer knows it."""

    @property
    def settings(self) -> dict[str, Any]:
        """Of the engine's optimizer, which a step reads and a checkpoint keeps."""

    def away(self, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter as the loop sees it."""

    def stepped(self) -> None:
        """End a step."""

    def zero_grad(self) -> None:
        """Begin the sums of gradients anew."""


def config_of(optimizer: Any) -> dict[str, Any]:
    """Arguments of an engine. Raises ValueError for an optimizer that no method here follows."""
    if type(optimizer) is not torch.optim.AdamW:
        given = type(optimizer).__name__
        raise ValueError(
            f"optimizer is a {given}; give torch.optim.AdamW(model.parameters(), lr=...)"
        )
    if optimizer.state:
        raise ValueError("the optimizer has made steps; give a fresh one, and load a checkpoint")
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise ValueError(
            "the optimizer has a scheduler; make that after workbench.wrap, of the optimizer that "
            "wrap returns"
        )
    groups = [{key: g[key] for key in ("params", *SETTINGS)} for g in optimizer.param_groups]
    return {"lr": groups[0]["lr"], "params": groups}


class Steered(torch.optim.Optimizer):
    """Settings of the loop's optimizer, and the end of its steps."""

    def __init__(self, model: Loop, own: torch.optim.AdamW) -> None:
        groups = [
            {**group, "params": [model.away(p) for p in group["params"]]}
            for group in own.param_groups
        ]
        self.__dict__["_model"] = model
        super().__init__(groups, own.defaults)
        self._first = [_but_rate(group) for group in self.param_groups]
        self._rate: float | None = None
        self._stepped = self._lacks = False
        """Whether there are moments, and whether settings were loaded without their moments."""

    @in_a_sentence()
    def step(self, closure: Callable | None = None) -> None:
        """End a step, whose update began with the backward pass. Raises ValueError where there is
        none, or where its learning rate was changed since."""
        if closure is not None:
            raise ValueError("optimizer.step takes no closure here: the passes are made before it")
        self._model.stepped()
        self._stepped = True
        if self._lr() != self._rate:
            raise ValueError(
                f"the learning rate is {self._lr()} at optimizer.step(), and was {self._rate} when "
                "the model was called, of which the update is; change it after step()"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As `Wrapped.zero_grad`."""
        self._model.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Settings; `Wrapped.save` writes moments."""
        return super().state_dict() | {"stepped": self._stepped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Settings; moments are brought by `Wrapped.load`, without which no step follows."""
        super().load_state_dict(state_dict)
        self._lacks = bool(state_dict["state"] or state_dict.get("stepped"))

    def tell_rate(self) -> None:
        """Have the next update made at the rate of now. Raises ValueError for other changes."""
        if self._lacks:
            raise ValueError(
                "optimizer.load_state_dict brings no moments, which are where the method keeps "
                "them: write model.save(folder) and take that up by model.load(folder)"
            )
        if [_but_rate(group) for group in self.param_groups] != self._first:
            raise ValueError(
                "the optimizer has other settings than at workbench.wrap; only the learning rate "
                "may change (OneCycleLR: cycle_momentum=False)"
            )
        self._rate = self._lr()
        self._model.settings["lr"] = self._rate

    def tell_settings(self) -> None:
        """Have a checkpoint keep what schedulers keep here."""
        mine, theirs = self.param_groups[0], self._model.settings
        theirs.update({key: value for key, value in mine.items() if key not in _KEPT})

    def take_up(self) -> None:
        """Have what a checkpoint has kept."""
        theirs, self._lacks = self._model.settings, False
        self._stepped = True
        for group in self.param_groups:
            group.update({key: value for key, value in theirs.items() if key not in _KEPT})

    def _lr(self) -> float:
        rates = {float(group["lr"]) for group in self.param_groups}
        if len(rates) > 1:
            raise ValueError(f"groups of the optimizer have the learning rates {rates}; give one")
        return rates.pop()


def _but_rate(group: Mapping[str, Any]) -> list[Any]:
    return [group[key] for key in SETTINGS if key != "lr"]
