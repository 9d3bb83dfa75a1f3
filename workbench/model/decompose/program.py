"""A layer's module: runs a plan over the model's own submodules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from workbench.model.decompose.plan import Plan
from workbench.model.decompose.written_out import WrittenOut


class Program(nn.Module):
    """Runs a plan. Its children and tensors are called "0", "1", ... in order of first use."""

    def __init__(
        self, plan: Plan, parts: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.plan = plan
        self.criterion: Callable | None = None
        self._of: WrittenOut | None = None
        self.modes: dict[str, tuple[bool, bool]] = {}
        """Submodules that the model's own `train` leaves in another mode than the model's: path
        here -> whether one trains while the model does, and while it does not."""
        self.slots: dict[str, str] = {}
        for path, part in parts.items():
            self.add_module(self._slot(path), part)
        for key, tensor in tensors.items():
            self.keep(key, tensor)

    def _slot(self, key: str) -> str:
        return self.slots.setdefault(key, str(len(self.slots)))

    def keep(self, key: str, tensor: Tensor) -> str:
        """Register a tensor and return its local name."""
        local = self._slot(key)
        if isinstance(tensor, nn.Parameter):
            self.register_parameter(local, tensor)
        else:
            self.register_buffer(local, tensor, persistent=False)
        return local

    def train(self, mode: bool = True) -> Program:
        """Set the mode, but for parts whose own mode is fixed."""
        super().train(mode)
        for path, kept in self.modes.items():
            self.get_submodule(path).training = kept[0] if mode else kept[1]
        return self

    def forward(self, *inputs: Tensor, targets: Any = None) -> tuple[Tensor, ...]:
        """The outputs of the layer's plan over its inputs. Raises ValueError for another number of
        inputs, and in a mode that the plan was not made in."""
        plan = self.plan
        if len(inputs) != len(plan.takes):
            raise ValueError(f"the layer takes {len(plan.takes)} tensors, not {len(inputs)}")
        if plan.mode is not None and plan.mode != self.training:
            raise ValueError(
                "the model does other things in training than in evaluation: decompose it once "
                "more, after `model.train()` or `model.eval()`"
            )
        place, dim, rows = plan.batch_from
        samples, device = inputs[place].shape[dim] // rows, inputs[place].device
        with device if plan.at_home else nullcontext():
            out = self._written.run(self, inputs, samples, device, self.training)
        if self.criterion is not None:
            return (self.criterion(self.restore(out), targets),)
        return out

    @property
    def _written(self) -> WrittenOut:
        """The plan's functions, of the plan that it has now."""
        if self._of is None or self._of.plan is not self.plan:
            self._of = WrittenOut(self.plan, self.slots)
        return self._of

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of": self._written}  # once for all copies

    def have(self, written: WrittenOut) -> None:
        """Run another plan, written out already, of the same parts and tensors."""
        self.plan, self._of = written.plan, written

    def restore(self, outputs: tuple[Tensor, ...]) -> Any:
        """The model's output, such as a dictionary, from the tensors in it."""
        return self._written.restore(self, outputs, 0, outputs[0].device, self.training)
