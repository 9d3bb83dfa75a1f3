"""A program written out as one Python function.

To look up what each call takes costs a tenth of a millisecond a layer and more, as long as small
passes take on a GPU; and a compiler that follows the lookups has thousands of conditions to check
at each call. The function has neither: a line a call, with all that is known in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from workbench.model.decompose.plan import (
    Affine,
    Call,
    Device,
    Form,
    Mode,
    Plan,
    Ref,
    Share,
    State,
    build,
    flatten,
)

Function = Callable[..., tuple[Any, ...]]
"""(program, inputs, samples, device, whether it trains) -> leaves of the outputs."""
LITERALS = (int, bool, str, type(None))


def tensors(made: Any, wanted: int, target: Any) -> list[Tensor]:
    """The tensors that a call put out. Raises ValueError where these are not as many as when the
    model was decomposed."""
    found = [leaf for leaf in flatten(made)[0] if isinstance(leaf, Tensor)]
    if len(found) != wanted:
        raise ValueError(
            f"{target} put out {len(found)} tensors, and {wanted} when the model was decomposed"
        )
    return found


class WrittenOut:
    """Functions of a plan, whose parts and tensors have names in the program's `slots`."""

    def __init__(self, plan: Plan, slots: Mapping[str, str]) -> None:
        self.plan = plan
        self.run = _Writer(slots).run(plan)
        """Calls everything."""
        self.restore = _Writer(slots).restore(plan) if plan.output else None
        """Makes the model's output, of the leaves of the last layer's, for 0 samples."""

    def __deepcopy__(self, memo: dict) -> WrittenOut:
        """Itself: a copy of a program calls its own parts by equal names."""
        return self

    def __reduce__(self) -> tuple[type, tuple]:
        """None, where it is pickled: functions that were made here cannot be."""
        return type(None), ()


class _Writer:
    """Text of a function, and its constants."""

    def __init__(self, slots: Mapping[str, str]) -> None:
        self._slots, self._numbers = slots, count()
        self._names: dict[str, Any] = {
            "Tensor": Tensor, "build": build, "tensors": tensors, "no_grad": torch.no_grad
        }  # fmt: skip
        self._parts: dict[str, str] = {}
        """Key of a part or tensor of the program -> the local name."""

    def run(self, plan: Plan) -> Function:
        lines = []
        for call, drops in zip(plan.calls, plan.drops, strict=True):
            lines += self._call(call)
            lines += [f"del {', '.join(f'v{number}' for number in drops)}"] * bool(drops)
        gives = "".join(f"{self._leaf(leaf)}, " for leaf in plan.gives)
        return self._made([f"v{number}" for number in plan.takes], lines, f"({gives})")

    def restore(self, plan: Plan) -> Function:
        form, leaves = plan.output
        names = [f"t{n}" for n, leaf in enumerate(leaves) if isinstance(leaf, Ref | State)]
        left = iter(names)
        each = (next(left) if isinstance(x, Ref | State) else self._leaf(x) for x in leaves)
        return self._made(names, [], self._form(form, each))

    def _made(self, takes: Sequence[str], lines: Sequence[str], gives: str) -> Function:
        begin = [f"{''.join(f'{name}, ' for name in takes)}= inputs"] * bool(takes)
        parts = [
            f"{here} = getattr(program, {self._slots[k]!r})" for k, here in self._parts.items()
        ]
        head = "def made(program, inputs, samples, device, training):"
        text = "\n    ".join([head, *begin, *parts, *lines, f"return {gives}"])
        exec(compile(text, "<string>", "exec"), self._names)  # noqa: S102  # of our own making
        return self._names.pop("made")

    def _call(self, call: Call) -> list[str]:
        leaves = map(self._leaf, call.leaves)
        args, kwargs = call.form.parts
        given = [self._form(part, leaves) for part in args.parts]
        named = [
            f"{key}={self._form(part, leaves)}"
            for key, part in zip(kwargs.keys, kwargs.parts, strict=True)
        ]
        if isinstance(call.target, str):
            target = self._part(call.target)
        elif call.method:  # compilers do not follow one that is called as a function
            target = f"{given.pop(0)}.{call.method}"
        else:
            target = self._constant(call.target)
        about = self._constant(call.target)
        lines = [f"made = {target}({', '.join([*given, *named])})"]
        if not call.grad:
            lines = ["with no_grad():", f"    {lines[0]}"]
        if len(call.results) == 1:
            (number,) = call.results
            other = f"tensors(made, 1, {about})[0]"
            return [*lines, f"v{number} = made if isinstance(made, Tensor) else {other}"]
        into = "".join(f"v{number}, " for number in call.results)
        found = f"tensors(made, {len(call.results)}, {about})"
        return [*lines, f"{into}= {found}" if into else found]

    def _form(self, form: Form, leaves: Iterator[str]) -> str:
        """A nested value, of the next leaves."""
        kind = form.kind
        if kind is None:
            return next(leaves)
        parts = [self._form(part, leaves) for part in form.parts]
        inner = "".join(f"{part}, " for part in parts)
        if kind is tuple:
            return f"({inner})"
        if kind is list:
            return f"[{inner}]"
        if kind is slice:
            return f"slice({inner})"
        if kind is dict:
            pairs = zip(form.keys, parts, strict=True)
            return "{" + "".join(f"{self._value(key)}: {part}, " for key, part in pairs) + "}"
        one = Form(kind, form.keys, tuple(Form(None, (), ()) for _ in parts))
        return f"build({self._constant(one)}, [{inner}])"

    def _leaf(self, leaf: Any) -> str:
        if isinstance(leaf, Ref):
            return f"v{leaf.number}"
        if isinstance(leaf, State):
            return self._part(leaf.key)
        if isinstance(leaf, Affine):
            return f"({leaf.slope} * samples + {leaf.start})"
        if isinstance(leaf, Share):
            return f"({self._value(leaf.whole)} / samples)"
        if isinstance(leaf, Device):
            return "device"
        if isinstance(leaf, Mode):
            return f"({self._value(leaf.training)} if training else {self._value(leaf.evaluation)})"
        return self._value(leaf)

    def _part(self, key: str) -> str:
        return self._parts.setdefault(key, f"p{len(self._parts)}")

    def _value(self, value: Any) -> str:
        """A constant, in the text where that is exact."""
        return repr(value) if type(value) in LITERALS else self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{next(self._numbers)}"
        self._names[name] = value
        return name
