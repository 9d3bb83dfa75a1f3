"""The calls that a model makes: which submodules and functions, in order, on which tensors.

A block is called as a whole and what it does inside is its own affair; outside of blocks each
torch function is noted. Tensors that come from the model's inputs have no values. What depends on
nothing (positions, causal masks) is computed, since models look at it to take a shorter way.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.model.decompose.plan import (
    Call,
    Device,
    Form,
    Named,
    Ref,
    State,
    build,
    flatten,
    labels,
)

PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    type,
    type(...),
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
"""Types of arguments, besides tensors, that cannot change between calls."""

BY_SHAPE = {
    **{name: torch.zeros for name in ("zeros_like", "new_zeros")},
    **{name: torch.ones for name in ("ones_like", "new_ones")},
    **{name: torch.empty for name in ("empty_like", "new_empty")},
    **{name: torch.full for name in ("full_like", "new_full")},
}
"""Functions that read nothing of a tensor but its shape, dtype and device."""


OWN_FUNCTION = "it uses an autograd function of its own outside of its blocks"
HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")
GRADIENTS = ("backward", "grad")


class Refusal(Exception):
    """Why a model cannot be decomposed."""


class Overwritten(Exception):
    """A constant was written to with a tensor that has no values."""


@dataclass(slots=True)
class Aliasing:
    """Shared memory of tensors, and the calls that write there, in one mode."""

    storage: list[int] = field(default_factory=list)
    """Memory of each number."""
    written: list[frozenset[int]] = field(default_factory=list)
    """Storages each call writes to."""
    of_state: dict[str, int] = field(default_factory=dict)
    """Storages of the parameters, buffers and constants that functions are given."""


@dataclass(slots=True)
class Trace:
    """One run. Tensors are numbered in the order of their appearance, inputs first."""

    inputs: int
    calls: list[Call] = field(default_factory=list)
    random: list[bool] = field(default_factory=list)
    """Whether each function call draws random numbers."""
    names: list[str] = field(default_factory=list)
    shapes: list[Any] = field(default_factory=list)
    """Tuples of numbers, or of `Affine` once several runs are merged."""
    dtypes: list[torch.dtype] = field(default_factory=list)
    grads: list[list[tuple[int, bool]]] = field(default_factory=list)
    """(call, whether it needs a gradient after it), of each number; -1 for inputs."""
    output: tuple[Form, tuple[Any, ...]] | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Parameters, buffers and constants that functions are given."""
    aliasing: list[Aliasing] = field(default_factory=lambda: [Aliasing()])
    """One for each mode the program is right for."""

    def needs_grad(self, number: int, before: int) -> bool:
        """Whether the tensor needs a gradient when call `before` is next."""
        return [needs for call, needs in self.grads[number] if call < before][-1]


class Dice(TorchDispatchMode):
    """Notices random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.thrown = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.thrown |= torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        return func(*args, **(kwargs or {}))


class Recorder(TorchFunctionMode):
    """Notices what is called while it is active."""

    def __init__(
        self,
        fakes: FakeTensorMode,
        states: dict[int, tuple[str, Tensor]],
        inputs: dict[str, Tensor],
        *,
        compute: bool,
        dice: bool,
    ) -> None:
        """`states`: id of a fake parameter, buffer or constant -> (key, the model's tensor).

        With `compute`, constants have values, and `Overwritten` is raised when they lose them.
        `dice`: whether blocks with weights, too, are to be watched for random numbers.
        """
        super().__init__()
        self.fakes, self.states, self.compute, self.dice = fakes, states, compute, dice
        self.numbers: dict[int, int] = {}
        self.tensors: list[Tensor] = []  # by number
        self.makers: list[Any] = []  # of each, what autograd calls to pass its gradient on
        self.captured: list[Tensor] = []  # an id means nothing once its tensor is gone
        self.twins: dict[int, tuple[Tensor, Tensor]] = {}
        self.homes: dict[int, int] = {}  # storage -> storage that it stands for
        self.listened: set[int] = set()  # modules that report their calls, by id
        self.inside = 0
        self.autocast = _autocast()
        self.trace = Trace(inputs=len(inputs))
        self.aliasing = self.trace.aliasing[0]
        for name, tensor in inputs.items():
            self._number(tensor, name, -1)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.inside:
            return func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "__set__":
            raise Refusal(f"it sets {func.__self__.__name__!r} of a tensor")
        if getattr(func, "__name__", "") in HOOKS:
            raise Refusal(f"it calls {func.__name__!r} of a tensor outside of its blocks")
        if getattr(func, "__name__", "") in GRADIENTS and callable(func):
            raise Refusal("it takes gradients outside of its blocks")
        if func in _device_constructors() and (kwargs or {}).get("device") is None:
            kwargs = {**(kwargs or {}), "device": torch.device("cpu")}  # wherever the layer runs
        return self.call(func, func, args, kwargs or {})

    def call(
        self, target: str | Callable, run: Callable, args: tuple, kwargs: dict, dice: bool = True
    ) -> Any:
        """Run, and note the call when tensors come out of it or are changed by it.

        `dice`: whether to look for random numbers, which takes time.
        """
        self.inside += 1
        try:
            with Dice() if dice else nullcontext() as thrower:
                return self._call(target, run, args, kwargs, thrower)
        finally:
            self.inside -= 1

    def _call(
        self, target: str | Callable, run: Callable, args: tuple, kwargs: dict, dice: Dice | None
    ) -> Any:
        leaves, form = flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        versions = [tensor._version for tensor in tensors]
        foreign = any(map(self._is_foreign, tensors))
        grad = torch.is_grad_enabled()
        out = self._run(run, leaves, form, block=isinstance(target, str))
        made, made_form = flatten(out)
        changed = [t for t, before in zip(tensors, versions, strict=True) if t._version != before]
        if not changed and not any(isinstance(leaf, Tensor) for leaf in made):
            return out
        if foreign:
            raise Refusal(OWN_FUNCTION)
        if _autocast() != self.autocast:
            raise Refusal("it switches autocast on or off outside of its blocks")
        name, other = _otherwise(target, args, kwargs, out)
        if other is not None:
            target, args, kwargs = other
            leaves, form = flatten((args, kwargs))
            made, made_form = flatten(self._run(target, leaves, form, block=False))
        # A tensor without values must not get them by chance. An output gets a new name even if it
        # went in: `dropout` puts out its argument or another tensor, depending on its mode.
        random = dice is not None and dice.thrown
        for i, leaf in enumerate(made):
            if isinstance(leaf, Tensor):
                leaf = self._twin(leaf) if random else leaf
                known = id(leaf) in self.numbers or id(leaf) in self.states
                made[i] = _alias(leaf) if known else leaf
        if any(new is not old for new, old in zip(made, flatten(out)[0], strict=True)):
            out = build(made_form, made)
        noted = tuple(self.leaf(leaf) for leaf in leaves)
        index = len(self.trace.calls)
        numbers = tuple(
            self._number(leaf, label, index)
            for label, leaf in zip(labels(made_form, name), made, strict=True)
            if isinstance(leaf, Tensor)
        )
        self._note_changes(tensors, changed, index)
        self.trace.calls.append(Call(target, form, noted, numbers, grad))
        self.trace.random.append(random)
        return out

    def _note_changes(self, tensors: list[Tensor], changed: list[Tensor], index: int) -> None:
        """Note the tensors that a call wrote to, and those that need gradients since."""
        written = frozenset(self._storage(tensor) for tensor in changed)
        self.aliasing.written.append(written)
        numbers = {self.numbers[id(t)] for t in tensors if id(t) in self.numbers}
        if written:
            numbers |= {n for n, s in enumerate(self.aliasing.storage) if s in written}
        for number in numbers:
            needs = self.tensors[number].requires_grad
            if self.trace.grads[number][-1][1] != needs:
                self.trace.grads[number].append((index, needs))

    def _run(self, run: Callable, leaves: list[Any], form: Form, *, block: bool) -> Any:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self.compute and not block and not any(isinstance(t, FakeTensor) for t in tensors):
            with unset_fake_temporarily():
                args, kwargs = build(form, leaves)
                return run(*args, **kwargs)
        leaves = [self._twin(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        versions = [leaf._version for leaf in leaves if isinstance(leaf, Tensor)]
        args, kwargs = build(form, leaves)
        out = run(*args, **kwargs)
        after = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        for tensor, twin, before in zip(tensors, after, versions, strict=True):
            if tensor is not twin and twin._version != before:
                raise Overwritten if self.compute else Refusal("it writes to a constant tensor")
        return out

    def _twin(self, tensor: Tensor) -> Tensor:
        """The tensor without its values."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self.twins:
            with self.fakes:
                twin = torch.empty_strided(
                    tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu"
                )
            self.twins[id(tensor)] = tensor, twin
            self.share(twin, tensor)
        return self.twins[id(tensor)][1]

    def leaf(self, leaf: Any) -> Any:
        """The program's stand-in for an argument."""
        if isinstance(leaf, np.generic):
            leaf = leaf.item()
        if not isinstance(leaf, Tensor):
            if not isinstance(leaf, PLAIN) and not is_dataclass(leaf):
                hint = " (`use_cache=False` switches it off)" if "Cache" in str(type(leaf)) else ""
                raise Refusal(
                    f"an argument between blocks is a {type(leaf).__name__}, neither a tensor nor "
                    f"a plain value{hint}"
                )
            return Device() if isinstance(leaf, torch.device) and leaf.type == "cpu" else leaf
        number = self.numbers.get(id(leaf))
        if number is not None:
            return Ref(number)
        if id(leaf) not in self.states:
            if isinstance(leaf, nn.Parameter):
                raise Refusal(
                    f"it uses a parameter of {[*leaf.shape]} that the model does not have; what "
                    "another module puts out, such as a teacher, belongs into the batch, as a "
                    "tensor that was computed before"
                )
            if isinstance(leaf, FakeTensor) or leaf.requires_grad:
                raise Refusal("it uses a tensor that none of the calls outside of its blocks made")
            self.captured.append(leaf)
            self.states[id(leaf)] = f"constant {len(self.states)}", leaf
        key, tensor = self.states[id(leaf)]
        self.trace.tensors[key] = tensor
        self.aliasing.of_state[key] = self._storage(leaf)
        return State(key)

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether something unseen gave the tensor a gradient, or took it away, or has another way
        for it."""
        number = self.numbers.get(id(tensor))
        if number is None:
            return False
        made = self.makers[number]
        own = made is not tensor.grad_fn and isinstance(tensor.grad_fn, BackwardCFunction)
        return own or self.trace.grads[number][-1][1] != tensor.requires_grad

    def put_out(self, out: Any) -> None:
        """Note the model's output."""
        leaves, form = flatten(out)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            raise Refusal("its output holds no tensor")
        if any(isinstance(leaf, Tensor) and self._is_foreign(leaf) for leaf in leaves):
            raise Refusal(OWN_FUNCTION)
        self.trace.output = form, tuple(self.leaf(leaf) for leaf in leaves)

    def share(self, tensor: Tensor, other: Tensor) -> None:
        """Take it that two tensors are views of one memory."""
        self.homes[storage_of(tensor)] = self._storage(other)

    def _storage(self, tensor: Tensor) -> int:
        storage = storage_of(tensor)
        return self.homes.get(storage, storage)

    def _number(self, tensor: Tensor, name: str, index: int) -> int:
        number = self.numbers[id(tensor)] = len(self.trace.names)
        self.tensors.append(tensor)
        self.makers.append(tensor.grad_fn)
        self.trace.names.append(name or "output")
        self.trace.shapes.append(tuple(tensor.shape))
        self.trace.dtypes.append(tensor.dtype)
        self.trace.grads.append([(index, tensor.requires_grad)])
        self.aliasing.storage.append(self._storage(tensor))
        return number


def _otherwise(
    target: str | Callable, args: tuple, kwargs: dict, out: Any
) -> tuple[str, tuple[Callable, tuple, dict] | None]:
    """A call's name, and how else to put it where the program could not repeat it as it is."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "call")
    if name == "__get__":  # of a property, which cannot be pickled
        name = target.__self__.__name__
        return name, (getattr, (args[0], name), {})
    if name in BY_SHAPE and not out.requires_grad:
        fill = (kwargs.get("fill_value", args[-1]),) if "full" in name else ()
        where = {"dtype": out.dtype, "device": out.device}
        return name, (BY_SHAPE[name], (tuple(out.shape), *fill), where)
    if "<locals>" in getattr(target, "__qualname__", ""):  # such as `max_pool2d`
        return name, (Named(target.__module__, name), args, kwargs)
    return name, None


def _alias(tensor: Tensor) -> Tensor:
    with torch.enable_grad():
        return tensor.view_as(tensor)


def storage_of(tensor: Tensor) -> int:
    """Identity of a tensor's memory; tensors that share memory share it."""
    return tensor.untyped_storage()._cdata


def _autocast() -> tuple[bool, ...]:
    return tuple(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
