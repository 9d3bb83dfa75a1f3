"""Modules that units run in: views of the memory that the units' weights lie in.

A resident unit has a module of its own. Streamed units share one for each slot and kind of unit. It
is a view of the slot for good, and the unit whose weights are in the slot runs in it.
"""

from __future__ import annotations

from torch import Tensor, nn

from workbench.model.base import LayeredModel
from workbench.model.modules import Decomposed
from workbench.runtime.memory.memory import Memory
from workbench.runtime.memory.storage import Flat


class UnitModules:
    """The module of each unit of one model."""

    def __init__(
        self,
        model: LayeredModel,
        memory: Memory,
        flats: list[Flat],
        slots: dict[int, str],
        gradients: dict[int, list[Tensor]],
    ) -> None:
        """`slots` has the weight slot of each streamed unit. `gradients` are views of slabs, of
        units that have one: autograd adds up those of the embedding and the head there."""
        self._model, self._memory, self._flats = model, memory, flats
        self._parameters: dict[nn.Module, list[nn.Parameter]] = {}
        self._modules: dict[int, nn.Module] = {}
        for unit in sorted(memory.resident):
            self._modules[unit] = self._module_on(unit, memory.weights(unit))
        shared_by: dict[tuple[str, str | int], nn.Module] = {}
        for unit in memory.streamed:
            # Layers of a module may differ in their buffers.
            key = (slots[unit], unit if isinstance(model, Decomposed) else model.kind(unit))
            if key not in shared_by:
                slot = memory.weight_slots[slots[unit]]
                shared_by[key] = self._module_on(unit, slot[: flats[unit].numel])
            self._modules[unit] = shared_by[key]
        for unit in filter(self.ends, self._modules):
            flats[unit].point_gradients(self._modules[unit], gradients[unit])
        model.check_shared()
        for (unit, local), (owner, owners) in model.tied().items():
            if owner == unit:  # under two names of one module
                continue
            shared = self._modules[owner].get_parameter(owners)
            path, _, leaf = local.rpartition(".")
            setattr(self._modules[unit].get_submodule(path), leaf, shared)

    def __getitem__(self, unit: int) -> nn.Module:
        """The module in which a unit runs, while its weights are there."""
        return self._modules[unit]

    def parameters(self, unit: int) -> list[nn.Parameter]:
        """Parameters of a block's module, in the order of the unit's pieces."""
        return self._parameters[self._modules[unit]]

    def ends(self, unit: int) -> bool:
        """Whether a unit is the embedding or the head. They may share a matrix: autograd adds their
        gradients up in a slab. A block's are taken from autograd as they come, and copied.
        """
        return unit in (0, self._model.head)

    def clear(self) -> None:
        """Let go of all modules."""
        self._modules.clear()
        self._parameters.clear()

    def _module_on(self, unit: int, slab: Tensor) -> nn.Module:
        """A module for units of this kind that is a view of `slab`."""
        memory, flat = self._memory, self._flats[unit]
        module = self._model.empty_module(unit, device=memory.device, dtype=memory.dtype)
        flat.point_weights(module, slab)
        if not self.ends(unit):
            self._parameters[module] = flat.parameters(module)
        return module
