"""All that passes of a model's units need, for batches of one form."""

from __future__ import annotations

from torch import Tensor

from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.runtime.memory.memory import Memory
from workbench.runtime.memory.storage import Flat
from workbench.runtime.passes.bundle import Boundary
from workbench.runtime.passes.template import Template, compiles
from workbench.runtime.passes.unit_modules import UnitModules

FORMS = 32
"""Most forms of batches whose layers are kept: the first one, and the latest."""


def make_room(forms: dict) -> None:
    """Let go of the oldest form but the first, where there is no room for another one."""
    if len(forms) >= FORMS:
        del forms[[*forms][1]]


class Passes:
    """Modules over the memory of one run's weights, and shapes of the tensors between them."""

    def __init__(
        self,
        model: LayeredModel,
        spec: RunSpec,
        memory: Memory,
        flats: list[Flat],
        slots: dict[int, str],
        gradients: dict[int, list[Tensor]],
        *,
        within: Passes | None = None,
    ) -> None:
        """`flats`, `slots` and `gradients` as for `UnitModules`; `within`: those for which memory
        was planned. Raises ValueError for a model that does not fit in there."""
        units, rows = range(model.num_units), spec.microbatch
        if [Flat.of(model, unit) for unit in units] != flats:
            raise ValueError(
                "the module has other layers for batches of this form than for the first one; make "
                "all batches of one shape, as by padding"
            )
        self.boundaries = [
            Boundary(model.boundary(unit, spec.model.seq) if unit else (), memory.dtype)
            for unit in units
        ]
        for unit in units if within else ():
            if self.boundaries[unit].nbytes(rows) > within.boundaries[unit].nbytes(rows):
                raise ValueError(
                    f"layer {unit} takes more for batches of this form than for the first one; "
                    "begin with the largest batch, for which all is planned"
                )
        compiled = compiles(spec.compile, memory.device.type, memory.dtype)
        self.template = Template(model, compiled=compiled)
        self.modules = UnitModules(model, memory, flats, slots, gradients)
