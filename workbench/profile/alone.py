"""One unit of a model by itself, on made-up values.

Forward without autograd, forward again with it, and backward to its inputs and parameters, as a
rank runs it. The engine of a single device (passes/engine.py) has slabs, in which gradients of the
first unit and the head add up, and into which those of a block are copied. Units are timed and
weighed so (measure.py), and it is seen whether a device has room for them (probe.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.model.base import Context, LayeredModel, Part
from workbench.profile.bench import Action, phases, torch_device, weigh
from workbench.runtime.memory.device_budget import DeviceMeter
from workbench.runtime.memory.storage import DTYPES, Flat
from workbench.runtime.passes.bundle import Boundary, Bundle, bundled, bytes_of, single
from workbench.runtime.passes.template import Template, compiles

WEIGHT_STD = 0.02
NOISE = 1 << 20
"""Different values in the weights."""
LOSS_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model, one micro-batch of its data, and how passes over it run."""

    model: LayeredModel
    inputs: tuple[Tensor, ...]
    """For the first unit, [samples, ...] each."""
    targets: Tensor
    """[samples, ...]."""
    seq: int
    dtype: torch.dtype
    device: torch.device
    compiled: bool = False

    @classmethod
    def of(
        cls, model: LayeredModel, inputs: tuple[Tensor, ...], targets: Tensor, *, seq: int,
        dtype: str, device: str, compile: str = "off",
    ) -> Setting:  # fmt: skip
        """`dtype` is ``fp32`` or ``bf16``, and `compile` as in a spec."""
        target, type_ = torch_device(device), DTYPES[dtype]
        return cls(
            model=model, inputs=inputs, targets=targets, seq=seq, dtype=type_, device=target,
            compiled=compiles(compile, target.type, type_),
        )  # fmt: skip

    @classmethod
    def of_tokens(cls, model: LayeredModel, size: tuple[int, int], **how: str) -> Setting:
        """A decoder over random tokens [micro-batch, seq], which are targets, too; each of them a
        document of its own, where they have positions."""
        tokens = torch.randint(model.vocab, size)
        inputs = (tokens, torch.zeros_like(tokens))[: len(model.boundary(1, size[1]))]
        return cls.of(model, inputs, tokens, seq=size[1], **how)

    @property
    def samples(self) -> int:
        """Samples of the micro-batch."""
        return len(self.targets)

    def flops(self, unit: int) -> float:
        """Floating-point operations of a unit's forward pass."""
        return self.model.flops(unit, self.samples, self.seq)

    def units(self, most: int = 1) -> list[int]:
        """The first `most` units of every kind, in the model's order."""
        kinds: dict[str, list[int]] = defaultdict(list)
        for unit in range(self.model.num_units):
            kinds[self.model.kind(unit)].append(unit)
        return sorted(unit for alike in kinds.values() for unit in alike[:most])


class Alone:
    """A unit with weights, and a micro-batch of what flows into it."""

    def __init__(
        self, setting: Setting, unit: int, meter: DeviceMeter, *, slabs: bool = False,
        noise: bool = True,
    ) -> None:  # fmt: skip
        """With `slabs` as the engine of a single device has them. Weights, and what other units put
        out, are random numbers; without `noise` zeros, a product of which draws less power on a
        GPU, and so runs faster."""
        model, device = setting.model, setting.device
        self.setting, self.model, self.unit, self.meter = setting, model, unit, meter
        self.device, self.samples = device, setting.samples
        self.kind, self.head = model.kind(unit), unit == model.head
        self.adds_up = slabs and unit in (0, model.head)
        """Whether gradients of parameters add up in a slab as they are made."""
        self.template = Template(model, compiled=setting.compiled)
        flat = Flat.of(model, unit)
        self.module = model.empty_module(unit, device=device, dtype=setting.dtype)
        flat.point_weights(self.module, self._weights(flat.numel, noise))
        self.parameters = flat.parameters(self.module)
        for (borrower, local), (owner, name) in model.tied().items():
            if borrower == unit != owner:
                parameter = self.module.get_parameter(local)
                shape = model.shapes(owner)[name]
                parameter.data = self._weights(shape.numel(), noise).view(shape)
                self.parameters.append(parameter)
        self._slabs = [self._weights(p.numel(), False).view_as(p) for p in self.parameters if slabs]
        self._own = len(flat.pieces)
        self._gradients: Sequence[Tensor] = self._slabs
        self._above: list[Tensor] | None = None
        """With slabs: gradients of outputs, which are there before a backward pass."""
        if self.adds_up:
            for parameter, slab in zip(self.parameters, self._slabs, strict=True):
                parameter.grad = slab
        self.boundary = Boundary(model.boundary(unit, setting.seq), setting.dtype) if unit else None
        if self.boundary is None:
            moved = (t.to(device, copy=True) for t in setting.inputs)  # fakes, among fakes
            self.x = tuple(t.to(setting.dtype) if t.is_floating_point() else t for t in moved)
        else:
            parts = zip(self.boundary.parts, self.boundary.dtypes, strict=True)
            self.x = tuple(self._made_up(part, of, noise) for part, of in parts)
        self._targets = setting.targets.to(device, copy=True) if self.head else None

    def forward(self) -> Bundle:
        """Without autograd."""
        with torch.no_grad():
            return self._run(self.x)

    def graph(self) -> tuple[Bundle, Bundle]:
        """Inputs and outputs of a forward pass with autograd."""
        x = self._inputs()
        with torch.enable_grad():
            return x, self._run(x)

    def checkpoint(self) -> tuple[Bundle, Bundle]:
        """Inputs and outputs of a forward pass with autograd that keeps its inputs alone."""
        x, ctx = self._inputs(), self._context()
        with torch.enable_grad():
            made = self.template.checkpointed(self.unit, self.module, single(x), ctx)
            return x, bundled(made)

    def _inputs(self) -> Bundle:
        """Inputs that ask for gradients where there are some."""
        if self.boundary is None:
            return self.x
        wanted = zip(self.x, self.boundary.differentiable, strict=True)
        return tuple(t.detach().requires_grad_(d) for t, d in wanted)

    def above(self, ends: Sequence[Tensor]) -> list[Tensor] | None:
        """Made-up gradients of outputs; None for the head, whose output is the loss."""
        return None if self.head else [torch.ones_like(each) for each in ends]

    def backward(self, x: Bundle, y: Bundle) -> None:
        """Run the backward pass of a `graph`."""
        ends = [t for t in y if t.requires_grad]
        above = self._above or self.above(ends)
        if self._slabs:
            self._above = above
        if not ends:  # a layer may have nothing to learn, nor to pass on
            return
        if self.adds_up:
            torch.autograd.backward(ends, above)
            return
        through = [t for t in x if t.requires_grad]
        wanted = [*through, *self.parameters]
        found = torch.autograd.grad(ends, wanted, above, materialize_grads=True)
        if self._slabs:
            self._gradients = found[len(through) :]

    def there_and_back(self) -> None:
        """Forward with autograd, and backward."""
        self.backward(*self.graph())

    def phases(self) -> dict[str, Action]:
        """Passes, and with slabs what a unit's gradients cost once a step (their norm, and zeroing
        a slab), and their copy into one. With slabs the head keeps its graph from the start."""
        found = phases(self.forward, self.graph, self.backward)
        if self._slabs:
            found["gradient"] = self._norm
        if self._slabs and not self.adds_up:
            found["copy"] = self._copy
        if self.adds_up and self.head:
            found["forward"] = found.pop("recompute")
        return found

    def weighed(self) -> dict[str, int]:
        """The fields of UnitCost that end in ``_bytes``."""
        self.there_and_back()
        own = self.model.unit_parameters(self.unit)  # gradients of borrowed ones are added up
        returned = 0 if self.adds_up else own * self.setting.dtype.itemsize
        if self.boundary is not None:
            returned += self.boundary.gradients().nbytes(self.samples)
        found = weigh(
            self.meter, self.forward, self.graph, self.backward, output=self.output_bytes(),
            returned=returned,
        )  # fmt: skip
        if self.adds_up and self.head:
            found["forward_scratch_bytes"] = found["recompute_scratch_bytes"]
        return {"input_bytes": bytes_of(self.x), **found}

    def output_bytes(self) -> int:
        """Bytes of what the unit puts out."""
        return LOSS_BYTES if self.head else bytes_of(self.forward())

    def _norm(self) -> None:
        own = [*self._gradients[: self._own]]
        torch.stack(torch._foreach_norm(own, 2, dtype=torch.float32))
        if self.adds_up:
            torch._foreach_zero_(own)

    def _copy(self) -> None:
        torch._foreach_copy_(self._slabs, [*self._gradients])
        self._gradients = self._slabs

    def _weights(self, numel: int, noise: bool) -> Tensor:
        """So many numbers, flat: of few different values, or zeros."""
        made = self.meter.zeros(numel, self.setting.dtype)
        if noise:
            values = torch.randn(NOISE, device=self.device).mul_(WEIGHT_STD).to(made.dtype)
            for part in made.split(NOISE):
                part.copy_(values[: len(part)])
        return made

    def _made_up(self, part: Part, dtype: torch.dtype, noise: bool) -> Tensor:
        shape = part.full_shape(self.samples)
        if not dtype.is_floating_point:
            return torch.ones(shape, dtype=dtype, device=self.device)
        if not noise:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return torch.randn(shape, device=self.device).to(dtype)

    def _run(self, x: Bundle) -> Bundle:
        args = single(x), self._context(), self._targets
        return bundled(self.template.forward(self.unit, self.module, *args))

    def _context(self) -> Context:
        return Context(seed=0, step=0, unit=self.unit, samples=tuple(range(self.samples)))
