"""Any module as a layered model, from the layers it was decomposed into."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from workbench.model.base import Context, LayeredModel, Part, Written
from workbench.model.checkpointed import take_over
from workbench.model.custom_data import counted
from workbench.model.decompose import UNREAD, Layer
from workbench.model.decompose.core import Core
from workbench.model.drawn import Draw, Pass, drawing
from workbench.model.frozen import held
from workbench.model.keyed import COUNT, OnceNorm, norms_in, within
from workbench.model.parted import Parts
from workbench.model.reach import unreached
from workbench.model.signature import HOOKS, attributes_of, ends_of, work_of
from workbench.model.traits import LayerTraits, traits_of
from workbench.model.weights.reader import Named
from workbench.model.weights.stored import Stored
from workbench.model.written import AsWritten

Initialize = Callable[[nn.Module, int, int], None]
"""Writes initial weights into a layer, of a number, for a seed."""
Names = Callable[[Stored], Mapping[str, str]]


class Decomposed(LayeredModel):
    """A module as units that can be made, moved and run one by one.

    The layers' own modules stay as they were found, mostly on the meta device; units are copies.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: list[Layer],
        initialize: Initialize,
        *,
        hidden: int,
        vocab: int,
        max_seq: int,
        targets: Tensor,
        frozen: Collection[str] = (),
        foreign: bool = False,
        left_out: bool = False,
        places: Sequence[Sequence[int]] | None = None,
        names: Names = lambda stored: {},
    ) -> None:
        """`layers` are those of `module`, and end with the loss; `targets` of two samples are an
        example; `frozen` are names of what is not trained (frozen.py), which asks for gradients
        like the rest; `foreign`: a user's own, of which nobody knows more than is seen;
        `left_out`: the loss leaves out labels of -100. `places`: where, among all draws in the
        module's order, each layer's are, of layers that are any sets of calls; what the module is
        called with then goes to those that read it. `names`: names in the model -> those in
        files of weights, where they are others. Raises ValueError for parameters that ask for
        no gradient, and for what no method here can do exactly.
        """
        take_over()
        self.foreign, self._targets, self._names = foreign, targets, names
        self._left_out = left_out or (foreign and not targets.is_floating_point())
        self._module, self._units, self._initialize = module, layers, initialize
        self.layers, self.hidden, self.vocab, self.max_seq = len(layers) - 2, hidden, vocab, max_seq
        for layer in layers:
            for name, parameter in layer.module.named_parameters():
                if not parameter.requires_grad:
                    raise ValueError(
                        f"parameter {layer.state.get(name, name)!r} cannot be trained: it asks for "
                        "no gradient"
                    )
                if parameter.dtype != torch.get_default_dtype():
                    raise ValueError(
                        f"parameter {layer.state.get(name, name)!r} is {_word(parameter.dtype)}; "
                        "all must be float32: call model.float() before; with dtype bf16 passes "
                        "compute with bfloat16 copies"
                    )

        self.frozen = frozenset(frozen)
        self.output: Any = None
        """Outputs of the model for two samples, on the meta device."""
        self._frozen = [
            tuple(name for name in _parameters(layer) if layer.state.get(name) in frozen)
            for layer in layers
        ]
        self._kinds, self._traits = self._traits_of_units()
        of_units = [self._traits[kind].draws for kind in self._kinds]
        self._takes = {value.name: place for place, value in enumerate(layers[0].inputs)}
        self._given = {} if places is None else self._takes
        ends = [*accumulate(map(len, of_units), initial=0)]
        self._places = [range(*pair) for pair in pairwise(ends)] if places is None else places
        """Of the draws of each unit."""
        drawn: dict[int, Draw] = {}
        for unit, (own, draws) in enumerate(zip(self._places, of_units, strict=True)):
            if len(own) != len(draws):
                raise ValueError(
                    f"the calls of stage {unit} draw random numbers {len(own)} times by "
                    f"themselves, and {len(draws)} times together: cut the model at its layers"
                )
            drawn |= dict(zip(own, draws, strict=True))
        self.draws: list[Draw] = [drawn[place] for place in sorted(drawn)]
        """All draws of the model, by their places."""
        devices = [self._traits[kind].device for kind in self._kinds]
        self._unreached = unreached(layers, self._kinds, devices, targets)

    def skeleton(self, unit: int) -> nn.Module:
        with unset_fake_temporarily():  # buffers cannot be copied there
            module = copy.deepcopy(self._units[unit].module)
            for part in norms_in(module).values():
                if part.running_mean.is_meta:
                    part.running_mean = torch.zeros_like(part.running_mean, device="cpu")
                    part.running_var = torch.ones_like(part.running_var, device="cpu")
                    part.num_batches_tracked = torch.tensor(0)
        for name, buffer in module.named_buffers():
            if buffer.is_meta:
                raise ValueError(
                    f"buffer {name!r} of layer {unit} has no values: decompose a model that is "
                    "not on the meta device"
                )
        return module

    def initialize(self, unit: int, module: nn.Module, *, seed: int) -> None:
        self._initialize(module, unit, seed)

    def reader(self, stored: Stored) -> Named:
        return Named(stored, self._names(stored), self._kept)

    @cached_property
    def _kept(self) -> set[str]:
        return {name for unit in range(self.num_units) for name in self.kept_buffers(unit).values()}

    def kept_buffers(self, unit: int) -> dict[str, str]:
        state = self._units[unit].state
        return {n: state[n] for n, _ in self._units[unit].module.named_buffers() if n in state}

    def tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        return self._tied

    @cached_property
    def _tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        return {
            (layer.index, local): owner
            for layer in self._units
            for local, owner in layer.shared.items()
            if local in dict(layer.module.named_parameters(remove_duplicate=False))
        }

    def state_name(self, unit: int, local_name: str) -> str:
        return self._units[unit].state[local_name]

    def parts(self, unit: int, module: nn.Module) -> dict[str, nn.Module | nn.Parameter]:
        slots = module.slots.items()
        return {key.removesuffix(UNREAD): getattr(module, slot) for key, slot in slots}

    def boundary(self, unit: int, seq: int) -> tuple[Part, ...]:
        return tuple(
            Part(
                shape=value.shape,
                dtype=None if value.dtype == torch.float32 else value.dtype,
                differentiable=value.differentiable,
                batch_dim=value.batch_dim,
                rows=value.rows,
                given=self._given.get(value.name) if unit else None,
            )
            for value in self._units[unit].inputs
        )

    def taken(self, unit: int) -> list[int | None]:
        """Of each tensor that flows into a unit its place among those that the model takes, where
        it is such a tensor as it was given."""
        return [self._takes.get(value.name) for value in self._units[unit].inputs]

    def forward(
        self,
        unit: int,
        module: nn.Module,
        x: Tensor | tuple[Tensor, ...],
        ctx: Context,
        targets: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """Run a unit; what it takes and puts out is its `boundary`, of the last one the loss."""
        inputs = x if isinstance(x, tuple) else (x,)
        if module.training != ctx.training:
            module.train(ctx.training)
        places = self._places[unit]
        own = self.draws[: max(places, default=-1) + 1]
        with drawing(Pass(ctx, own, places)), held(module, self._frozen[unit]):
            if unit == self.head:
                loss = module(*inputs, targets=targets)[0]
                return loss.to(torch.promote_types(loss.dtype, torch.float32))
            made = module(*inputs)
        return made if len(made) > 1 else made[0]

    def as_written(self, units: Sequence[nn.Module], *, checkpoint: bool = False) -> Written:
        paths = [layer.name for layer in self._units[1:-1]] if checkpoint else []
        return AsWritten(
            self, self._module, units, self._units[-1].module.criterion, paths,
            draws=self.draws, frozen=self.frozen,
        )  # fmt: skip

    def tie(self, units: Sequence[nn.Module]) -> None:
        super().tie(units)
        for places in self._norms.values():
            first, *others = (units[unit].get_submodule(path) for unit, path in places.items())
            for other in others:
                for name, buffer in first.named_buffers(recurse=False):
                    setattr(other, name, buffer)

    def norms_named(self, name: str) -> dict[int, str]:
        return self._norms.get(name, {})

    @cached_property
    def _norms(self) -> dict[str, dict[int, str]]:
        """Counter's name -> unit -> path, of BatchNorms with statistics."""
        found: dict[str, dict[int, str]] = {}
        for layer in self._units:
            for path in norms_in(layer.module):
                found.setdefault(layer.state[within(path, COUNT)], {})[layer.index] = path
        return found

    def norm_calls(self, unit: int, path: str) -> int:
        return self._traits[self.kind(unit)].norms.get(path, 0)

    def learns(self, unit: int, local_name: str) -> bool:
        """Whether a parameter is trained: it asks for gradients, and some reach it."""
        return local_name not in {*self._frozen[unit], *self._unreached[unit]}

    def decays(self, unit: int, local_name: str) -> bool:
        return self.learns(unit, local_name) and super().decays(unit, local_name)

    @property
    def alike(self) -> bool:
        return self.foreign or bool(self.couples)

    @cached_property
    def normalizes(self) -> bool:
        parts = (part for layer in self._units for part in layer.module.modules())
        return any(isinstance(part, OnceNorm) and part.training for part in parts)

    @property
    def counts_differ(self) -> bool:
        return self._left_out

    def counted(self, targets: Tensor) -> list[int]:
        return counted(targets) if self.counts_differ else super().counted(targets)

    @cached_property
    def couples(self) -> str:
        """Why samples of a micro-batch depend on each other; empty where they do not."""
        if self.normalizes:
            return "BatchNorm takes its statistics from a micro-batch"
        if self.draws_together:
            return "a layer draws random numbers for a whole micro-batch"
        return ""

    @property
    def draws_together(self) -> bool:
        """Whether a layer draws random numbers for a whole micro-batch."""
        return any(draw.whole for draw in self.draws)

    @cached_property
    def parted(self) -> Parts:
        """The layers, as far as the parts of a batch go."""
        devices = [self.bare_device(unit) for unit in range(self.num_units)]
        return Parts(self._units, self._kinds, devices)

    def kind(self, unit: int) -> str:
        return self._kinds[unit]

    def flops(self, unit: int, batch: int, seq: int) -> float:
        return batch * self._traits[self.kind(unit)].flops

    def made_bytes(self, unit: int, batch: int) -> int:
        """Bytes of all tensors that a forward pass makes, in fp32."""
        return batch * self._traits[self.kind(unit)].made_bytes

    def bare_device(self, unit: int) -> str:
        """Where a unit runs without the data's values: ``meta``, or ``cpu`` if it needs some."""
        return self._traits[self.kind(unit)].device

    def draws_in(self, unit: int) -> bool:
        """Whether a unit draws random numbers in training."""
        return len(self._places[unit]) > 0

    def normalizes_in(self, unit: int) -> bool:
        """Whether a unit has BatchNorm."""
        return any(isinstance(part, OnceNorm) for part in self._units[unit].module.modules())

    @cached_property
    def varies(self) -> str:
        """Why recordings could not stand for the passes of layers between the first and the last,
        as far as that is known before they are made; empty where it is not."""
        for unit in range(1, self.head):
            module, why = self._units[unit].module, ""
            if self.draws_in(unit):
                why = "draws random numbers"
            elif self.normalizes_in(unit):
                why = "has BatchNorm, which keeps statistics of each pass"
            elif any(getattr(part, key) for part in module.modules() for key in HOOKS):
                why = "has a hook on its forward pass, which no recording calls"
            if why:
                return f"layer {unit}, {self.path(unit)!r}, {why}"
        return ""

    def path(self, unit: int) -> str:
        """Path of the module in the model with which a unit begins."""
        return self._units[unit].name

    @cached_property
    def repeated(self) -> list[int]:
        """Units between the first and the last that are like others there, and learn all over."""
        middle = range(1, self.head)
        counts = Counter(map(self.work, middle))
        return [u for u in middle if counts[self.work(u)] > 1 and not self._frozen[u]]

    def work(self, unit: int) -> str:
        """Equal for units that do the same operations on the same shapes, whatever they hand on."""
        return self._work[unit]

    def core(self, unit: int) -> Core:
        """The unit's calls without what it hands on."""
        return self._cores[unit]

    def _traits_of_units(self) -> tuple[list[str], dict[str, LayerTraits]]:
        """The kind of each unit, and what kinds do, seen without weights. Units are of one kind
        that do the same operations on the same shapes; it is named after the first of them. Not
        left for later: what is made meanwhile would be counted as memory of a pass."""
        self._cores: list[Core] = []
        self._work: list[str] = []
        kinds: list[str] = []
        traits: dict[str, LayerTraits] = {}
        seen: dict[Any, tuple[LayerTraits, bool]] = {}
        first: dict[Any, str] = {}
        for layer in self._units:
            plan, own = layer.module.plan, (work_of(layer), ends_of(layer))
            attributes = own if (written := attributes_of(layer)) is None else (own, written)
            if written is None or attributes not in seen:
                seen[attributes] = traits_of(layer), plan.at_home
            found, plan.at_home = seen[attributes]
            signature = own, self._frozen[layer.index], found.did
            if signature not in first:  # a module that is called twice may see other shapes then
                taken = layer.name in traits
                first[signature] = f"{layer.name}@{layer.index}" if taken else layer.name
                traits[first[signature]] = found
            kinds.append(first[signature])
            self._cores.append(Core.of(layer))
            self._work.append(str((own[0], signature[1:], self._cores[-1].form)))
            if layer.index == self.head:
                self.output = layer.module.restore(found.outputs)
        return kinds, traits


def _parameters(layer: Layer) -> list[str]:
    return [name for name, _ in layer.module.named_parameters(remove_duplicate=False)]


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
