"""A module whose calls are passes of a method's schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from workbench.core.habits import instead
from workbench.model.decompose.plan import build, flatten
from workbench.schedule.plan import Plan
from workbench.wrapped.optimizer import Steered
from workbench.wrapped.passes import Passes

AWAY = (
    "gradients are where the method keeps them, and not at the parameters of the model: give "
    "clip=... to workbench.wrap for clipping by the global norm, whose value model.grad_norm has; "
    "other uses of gradients between loss.backward() and optimizer.step() are not possible, and a "
    "GradScaler has no place"
)
PLACED = "give device and dtype to workbench.wrap, which places the weights"
WHOLE = (
    "a wrapped model cannot be copied or pickled: load model.state_dict() into another module, or "
    "write model.save(folder), which has the moments, too"
)


USED = (
    "a loss is made of the outputs of a wrapped model alone, and not of its parameters, whose "
    "gradients would be lost; weight decay is the optimizer's"
)
READ = (
    "the outputs have a loss, at which gradients begin, and others beside it are for reading: call "
    "the model without labels, and make the whole loss of its outputs"
)
EVALUATED = "the model is in evaluation mode; call its train() before the calls of which it learns"


class Away(nn.Parameter):
    """A parameter of a wrapped model: name, shape, and values of the last evaluation; weights and
    gradients are where the method keeps them."""

    grad = property(instead(AWAY), instead(AWAY))


class Wrapped(nn.Module):
    """A module whose calls are passes of a method's schedule."""

    def __init__(self, module: nn.Module, engine: Passes, accumulate: int) -> None:
        super().__init__()
        own = {"_own": module, "engine": engine, "training": module.training}
        self.__dict__.update(own)  # no part of the model's: names in `state_dict` are its own
        self.accumulate = accumulate
        self._away = {id(p): _away(p) for p in module.parameters()}
        names = module.named_parameters(remove_duplicate=False)
        self._named = {name: self._away[id(p)] for name, p in names}
        self._wanted = [p.requires_grad for p in module.parameters()]
        self._anchor = torch.zeros((), requires_grad=True)
        self._holds, self._stale = False, any(p.is_meta for p in module.parameters())
        self._modes: dict[nn.Module, bool] = {}
        """Those of the parts before evaluation."""
        self._call = 0
        """Number of the last call that passed forward for gradients."""
        self._made = 0
        """Backward passes since the last step."""
        self._updated = False
        """Whether the last of them has begun to update."""

    # -- the loop -------------------------------------------------------------------------------

    @torch.compiler.disable  # layers are compiled by the engine
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the module; where gradients are wanted, at which they come back."""
        if not (self.training and torch.is_grad_enabled()):
            return self._evaluated(args, kwargs)
        if self._updated:
            raise ValueError(
                f"the update of the last {self._made} backward passes has begun: call "
                "optimizer.step() before the model, or give accumulate=... to workbench.wrap"
            )
        if [away.requires_grad for away in self._away.values()] != self._wanted:
            raise ValueError("other parameters are to be trained: freeze before workbench.wrap")
        self._check_sums()
        self._optimizer.tell_rate()
        holds = self._holds or self._made + 1 < self.accumulate
        found = self.engine.forward_pass(args, kwargs, holds=holds)
        self._call += 1
        leaves, form = flatten(found)
        devices = (leaf.device for leaf in flatten((args, kwargs))[0] if isinstance(leaf, Tensor))
        to = next(devices, torch.device("cpu"))
        leaves = [leaf.to(to) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        begins, further = self.engine.ends.begins, self.engine.ends.further
        out = _HandedOut.apply(self, holds, self._anchor, *(leaves[n] for n in begins))
        for n, leaf in zip(begins, out, strict=True):
            leaves[n] = leaf
        self._only_read(leaves, further, READ)
        self.engine.ends.outputs = None
        return build(form, leaves)

    def came_back(self, call: int, holds: bool, gradients: Sequence[Tensor]) -> None:
        """Gradients have come to the outputs of a call."""
        if call != self._call or not self.engine.waits:
            raise ValueError(
                "a backward pass begins once, at the outputs of the last call of the model: a "
                "second one, or one of an earlier call, is not possible; add losses of a call up "
                "before, or call backward() after each call and give accumulate=... to "
                "workbench.wrap"
            )
        self._stale |= not holds
        self.engine.backward_pass(gradients)
        self._made, self._updated = self._made + 1, not holds

    def stepped(self) -> None:
        """End a step, which may be one of fewer calls than were foreseen. Raises ValueError where
        no backward pass was made."""
        if not self._made:
            raise ValueError("optimizer.step() before loss.backward(): no gradients have come back")
        self._check_sums()
        if not self._updated:
            self._optimizer.tell_rate()
            self._stale = True
            self.engine.update_pass()
        self._made, self._updated = 0, False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin the sums of gradients anew. Raises ValueError where an update has begun."""
        if self._updated:
            raise ValueError(
                "optimizer.zero_grad() after loss.backward(): call step() between them"
            )
        if self._made:
            self.engine.discard()
            self._made = 0

    def _check_sums(self) -> None:
        if self._made and self.engine.failed:
            raise ValueError(
                f"a call has failed, and with it the gradients of {self._made} before are gone: "
                "call optimizer.zero_grad(), and begin the step anew"
            )
        self.engine.failed = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, no call is the last of a step."""
        before, self._holds = self._holds, True
        try:
            yield
        finally:
            self._holds = before

    def steered(self, optimizer: torch.optim.AdamW) -> Steered:
        """The loop's optimizer, by the settings of the user's."""
        self._optimizer = Steered(self, optimizer)
        return self._optimizer

    @property
    def settings(self) -> dict[str, Any]:
        """Of the engine's optimizer, which a step reads and a checkpoint keeps."""
        return self.engine.optimizer.param_groups[0]

    @property
    def plan(self) -> Plan | None:
        """As `Engine.plan` tells it."""
        return self.engine.plan

    @property
    def grad_norm(self) -> float | None:
        """Global norm of the last step's gradients before they were clipped, where it is known."""
        return self.engine.grad_norm

    # -- weights --------------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The trained weights, as `Engine.state_dict` gives them."""
        if args or kwargs:
            raise ValueError("state_dict of a wrapped model takes no arguments; it has all weights")
        return self.engine.state_dict()

    def trained(self) -> nn.Module:
        """The user's own module, with the weights of now."""
        if self._stale:
            state, own = self.engine.state_dict(), dict(self._own.named_parameters())
            bare = any(p.is_meta for p in own.values())
            if bare:  # it has no values, and its twin's types are other ones
                self.__dict__["_own"] = self.engine.twin().train(self.training)
                state = {n: t.to(own[n].dtype) if n in own else t for n, t in state.items()}
            self._own.load_state_dict(state, assign=bare)
            if bare and hasattr(self._own, "tie_weights"):
                self._own.tie_weights()
            self._stale = False
        return self._own

    def save(self, folder: str | Path) -> Path:
        """As `Engine.save`. Raises ValueError within a step."""
        if self._made:
            raise ValueError("save within a step: call optimizer.step() before")
        self._optimizer.tell_settings()
        return self.engine.save(folder)

    def load(self, folder: str | Path, *, has_weights: bool = False) -> int | None:
        """As `Engine.load`: weights, moments and the optimizer's settings; a step that is begun is
        let go. `has_weights`: the user's own module has these weights already."""
        with suppress(Exception):  # of weights that are there no more
            self.engine.discard()
        self._made, self._updated = 0, False
        found = self.engine.load(folder)
        if found is not None:
            self._stale = not has_weights
            self._optimizer.take_up()
        return found

    def close(self) -> None:
        """Give all memory back."""
        self.engine.close()

    def _evaluated(self, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        with torch.no_grad():
            found = self.trained()(*args, **kwargs)
        if not torch.is_grad_enabled():
            return found
        leaves, form = flatten(found)
        floats = [
            n
            for n, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ]
        self._only_read(leaves, floats, EVALUATED)
        return build(form, leaves)

    def _only_read(self, leaves: list[Any], places: Sequence[int], advice: str) -> None:
        """Have the advice where gradients come back to the leaves at these places."""
        if places:
            read = _Read.apply(advice, self._anchor, *(leaves[n] for n in places))
            for n, leaf in zip(places, read, strict=True):
                leaves[n] = leaf

    # -- a module's habits ----------------------------------------------------------------------

    def train(self, mode: bool = True) -> Wrapped:
        """Whether calls train; of parts that are in evaluation mode for themselves they do not."""
        self.training = mode
        if not mode and not self._modes:
            self._modes = {part: part.training for part in self._own.modules()}
            self._own.eval()
        elif mode:
            for part, before in self._modes.items():
                part.training = before
            self._modes = {}
            if self.engine.fresh:
                self._own.train()
        return self

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Names, shapes, and between steps the values of now; gradients are away."""
        own = self._between().named_parameters("", recurse, remove_duplicate)
        for name in [name for name, _ in own]:
            yield f"{prefix}{'.' * bool(prefix)}{name}", self._named[name]

    def away(self, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter as the loop sees it."""
        return self._away.get(id(parameter), parameter)

    def __getattr__(self, name: str) -> Any:
        """The module's own attributes; its methods, such as `generate` or `save_pretrained`, and
        between steps its parts have the weights of now."""
        own = self.__dict__["_own"]
        found = getattr(own, name)
        if getattr(found, "__self__", None) is own:
            return getattr(self.trained(), name)
        return getattr(self._between(), name) if isinstance(found, nn.Module | Tensor) else found

    def _between(self) -> nn.Module:
        """The user's own module, with the weights of now unless a step has begun."""
        begun = self._made or self.engine.waits or self.engine.fresh
        return self._own if begun else self.trained()

    def extra_repr(self) -> str:
        """The user's own module in words."""
        return repr(self._own)

    __deepcopy__ = __reduce_ex__ = instead(WHOLE)
    to = cuda = cpu = float = double = half = bfloat16 = type = instead(PLACED)
    load_state_dict = instead(
        "set the weights before workbench.wrap, or take up a checkpoint by model.load(folder)"
    )


def _away(parameter: nn.Parameter) -> Away:
    away = torch.Tensor._make_subclass(Away, parameter.data, parameter.requires_grad)
    if away.requires_grad:
        away.register_hook(instead(USED))
    return away


class _HandedOut(torch.autograd.Function):
    """Outputs as the user gets them, at which gradients come back."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, model: Wrapped, holds: bool, _: Tensor, *ends: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.model, ctx.call, ctx.holds = model, model._call, holds
        return _seen(ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[None, ...]:
        ctx.model.came_back(ctx.call, ctx.holds, gradients)
        return (None,) * (3 + len(gradients))


class _Read(torch.autograd.Function):
    """Outputs for reading, at which no gradients may come back."""

    @staticmethod
    def forward(ctx: FunctionCtx, advice: str, _: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        ctx.advice = advice
        return _seen(others)

    @staticmethod
    def backward(ctx: FunctionCtx, *_: Tensor) -> None:
        raise ValueError(ctx.advice)


def _seen(ends: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Outputs over the same memory; of a number a copy, which may be changed in place."""
    return tuple(end.view_as(end) if end.dim() else end.clone() for end in ends)
