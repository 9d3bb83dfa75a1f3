"""Passes of a process's stages through autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from workbench.runtime.passes.bundle import Bundle
from workbench.runtime.passes.differentiation import Above, Differentiation
from workbench.runtime.transport.group_transport import Form

Key = tuple[int, int, int]
"""Stage, micro-batch, step."""


class StageModule(Protocol):
    """A stage of a model."""

    last: bool

    def came(self, samples: int) -> Sequence[Form]:
        """Tensors from the stage before."""

    def goes(self, samples: int) -> Sequence[Form]:
        """Tensors for the stage behind."""

    def run(self, came: Bundle, micro: int, step: int) -> Bundle:
        """A pass over a micro-batch of a step: tensors for the stage behind, or its mean loss."""


class StagePasses:
    """Passes of stages. Gradients of weights are added to each weight's `grad`."""

    def __init__(self, stages: Mapping[int, StageModule]) -> None:
        """`stages`: unit of the schedule -> the stage."""
        self._stages, self._autograd = stages, Differentiation()

    def begin(self) -> None:
        """Before a step."""

    def forward(self, key: Key, came: Bundle, samples: int, *, keeps: bool) -> Bundle:
        """The outputs of a pass over a micro-batch of so many samples. With `keeps` its graph is
        kept for the backward pass."""
        unit, micro, step = key
        stage = self._stages[unit]
        wanted = wants(stage.came(samples) if came else ()) if keeps else None
        return self._autograd.forward(key, lambda x: stage.run(x, micro, step), came, wanted)

    def backward(self, key: Key, came: Bundle, samples: int, above: Above) -> Bundle:
        """Gradients of the differentiable inputs. Where no graph is kept, the inputs `came` are a
        checkpoint, and the forward pass comes again first."""
        if key not in self._autograd:
            self.forward(key, came, samples, keeps=True)
        return self._autograd.accumulate(key, above)

    def forget(self) -> None:
        """Let go of all graphs."""
        self._autograd.forget()


def wants(forms: Sequence[Form]) -> list[bool]:
    """Of each tensor whether it has a gradient."""
    return [form[2] for form in forms]


def there(bundle: Bundle) -> Bundle:
    """Tensors that another stream made, and the current one uses: their memory is not used again
    before it is done."""
    for tensor in bundle:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return bundle
