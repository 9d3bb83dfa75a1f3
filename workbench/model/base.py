"""A model as a list of units that know nothing of each other.

The methods compared here differ in where a layer's weights are and when it runs, so a model must
come apart: unit 0 embeds tokens, units 1 to n are blocks, unit n + 1 is the head with the loss.
Between units flows one tensor [B, S, H], or what the model's `boundary` says. A unit can be made
alone, with weights that depend on the seed and its number only, so a model larger than any one
memory is never whole anywhere; and `make_whole` makes the same model, bit for bit, as the one
module that plain training and libraries expect.

Units of one `kind` have equal shapes and run alike. So one module per kind and buffer is enough:
make an `empty_module`, point its parameters into a buffer (`parameter.data = view`), and run any
unit of the kind whose weights are in the buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from workbench.model.weights.reader import Beginning, Named, Reader
from workbench.model.weights.stored import Stored


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Identity of a micro-batch in a unit: the key of every random number drawn there."""

    seed: int
    """The run's seed."""
    step: int
    """Optimizer step, from 0."""
    unit: int
    samples: tuple[int, ...]
    """Global sample number of each row, counted from the start of the run."""
    training: bool = True
    """False for evaluation: nothing is dropped."""
    uniform: bool = False
    """Whether all its samples are (`LayeredModel.uniform`); where nobody has looked, they are not.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One tensor of what flows from a unit to the next."""

    shape: tuple[int, ...]
    """Without the batch dimension."""
    dtype: torch.dtype | None = None
    """None for the one the run computes in."""
    differentiable: bool = True
    """Whether a gradient comes back for it."""
    batch_dim: int | None = 0
    """Where the batch dimension is; None for what does not grow with the batch."""
    rows: int = 1
    """Entries of the batch dimension per sample."""
    given: int | None = None
    """Place among what the model takes, of such a tensor as it was given: who reads it has it."""

    def full_shape(self, samples: int) -> tuple[int, ...]:
        """Shape for so many samples."""
        if self.batch_dim is None:
            return self.shape
        at = self.batch_dim
        return (*self.shape[:at], samples * self.rows, *self.shape[at:])


Call = tuple[tuple, dict[str, Any]]
"""Arguments of a block beside its input."""
Written = Callable[[Any, "Tensor | None", Context], Tensor]
"""(what the model takes, targets or None, context of unit 0) -> the mean loss of a micro-batch, an
fp32 scalar; without targets what the model puts out."""


class LayeredModel(ABC):
    """Structure and arithmetic of a model; the weights live in the modules it builds."""

    layers: int
    """Blocks n."""
    hidden: int
    """Width H of what flows between units."""
    vocab: int
    """Token ids are below this."""
    max_seq: int
    """Longest sample in tokens."""
    classes: int | None = None
    """Labels the model tells apart, where that is known and labels may be anything."""
    couples: str = ""
    """Influence of the other samples of a micro-batch on one, in words; empty where there is
    none."""

    trained: Beginning | None = None
    """Weights in files that the model begins from; None for random ones."""
    draws_together: bool = False
    """Whether a layer draws random numbers for a micro-batch as a whole: for another one, others.
    """

    @property
    def alike(self) -> bool:
        """Whether forward and backward passes are to take equal micro-batches, unless the user asks
        for others, since samples depend on each other there, or nobody knows that they do not."""
        return bool(self.couples)

    @property
    def normalizes(self) -> bool:
        """Whether layers take statistics from a micro-batch, and keep them."""
        return False

    @property
    def counts_differ(self) -> bool:
        """Whether the loss of one sample may be over more labels than that of another."""
        return False

    def counted(self, targets: Tensor) -> list[int]:
        """How many labels of each sample count in the loss of these targets, which is the mean over
        all that do; 1 each, where samples have as many. Targets are on the CPU."""
        return [1] * len(targets)

    @property
    def compilable(self) -> bool:
        """Whether a block is a function of its weights, its input x, and what it is called with
        beside it, which depends on the shape of x alone, or also on a tensor that flows beside x.
        """
        return False

    def beside(self, kind: str, x: Tensor) -> Call:
        """Arguments of the blocks of a kind beside x [B, S, H], of a compilable model and uniform
        samples. Raises ValueError where they are not equal for all of them."""
        return (), {}

    def following(self, kind: str, x: Tensor) -> Callable[[Tensor], Call]:
        """Function that gives them for any samples, of the tensor that flows beside x; of a model
        with such a one. It makes tensors of constant shapes and asks for no values."""
        raise NotImplementedError

    def uniform(self, inputs: Sequence[Tensor]) -> list[bool]:
        """Whether blocks are called for a sample as for any other of its length, of each sample of
        these inputs of the model, which are on the CPU."""
        return [True] * len(inputs[0])

    @property
    def num_units(self) -> int:
        """n + 2: embedding, blocks, head."""
        return self.layers + 2

    @property
    def head(self) -> int:
        """Number of the last unit."""
        return self.num_units - 1

    # Defined by each family.

    @abstractmethod
    def skeleton(self, unit: int) -> nn.Module:
        """A new module of the unit with parameters on the meta device and buffers computed."""

    @abstractmethod
    def initialize(self, unit: int, module: nn.Module, *, seed: int) -> None:
        """Write initial weights into the unit's module, on the CPU in fp32; tied ones are empty."""

    @abstractmethod
    def tied(self) -> dict[tuple[int, str], tuple[int, str]]:
        """(unit, local name) of a parameter that another unit owns -> (owner, its local name)."""

    @abstractmethod
    def state_name(self, unit: int, local_name: str) -> str:
        """Name of a unit's parameter in the `state_dict` of the whole model."""

    @abstractmethod
    def parts(self, unit: int, module: nn.Module) -> dict[str, nn.Module | Tensor]:
        """Where the submodules of a unit, and parameters that are in none, sit in the whole model:
        path -> submodule or parameter."""

    @abstractmethod
    def forward(
        self,
        unit: int,
        module: nn.Module,
        x: Tensor,
        ctx: Context,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Run a unit on a micro-batch.

        Embedding: token ids [B, S] -> [B, S, H]. Block: [B, S, H] -> [B, S, H]. Head: [B, S, H] and
        targets [B, S] -> the mean loss of the micro-batch, an fp32 scalar; without targets, logits
        [B, S, V]. Raises ValueError when `ctx.samples` does not name every row.
        """

    # Derived for all families.

    def boundary(self, unit: int, seq: int) -> tuple[Part, ...]:
        """Tensors that flow into a unit from the one before, for samples of `seq` tokens. Where
        there are several, `forward` takes and returns a tuple."""
        return (Part(shape=(seq, self.hidden)),)

    def as_written(self, units: Sequence[nn.Module], *, checkpoint: bool = False) -> Written | None:
        """The model as its author wrote it, undivided, over the parameters and statistics of these
        units, which are all of it; with `checkpoint` blocks are computed again in the backward
        pass. None where the units are what was written."""
        return None

    def norms_named(self, name: str) -> dict[int, str]:
        """Where the BatchNorm is whose counter has this name in the whole model: unit -> path."""
        return {}

    def reader(self, stored: Stored) -> Reader:
        """Reads weights from files under the model's names; no file is opened yet."""
        return Named(stored)

    def kept_buffers(self, unit: int) -> dict[str, str]:
        """Buffers of a unit that files of weights may hold: local name -> name in the whole
        model's `state_dict`."""
        return {}

    def norm_calls(self, unit: int, path: str) -> int:
        """How often a pass of a unit calls the BatchNorm at a path, whose statistics see each call;
        0 where they are kept as they are."""
        return 1

    def kind(self, unit: int) -> str:
        """Units of one kind have equal shapes and can share one module."""
        if unit == 0:
            return "embedding"
        return "head" if unit == self.head else "block"

    def build(
        self,
        unit: int,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        places: Mapping[str, Tensor] | None = None,
        there: bool = False,
    ) -> nn.Module:
        """The unit alone with its initial weights, which depend on (seed, unit) only.

        Weights are drawn on the CPU in fp32, or read from the files of trained ones, whatever
        device and dtype ask for; on the meta device none are. A tied parameter has no elements: put
        the owner's in its place. `places` are memory for those that the unit owns. With `there` a
        decoder of Hugging Face draws them on the device, sooner: other numbers than a run's.
        """
        module, places = self._new(unit), places or {}
        if torch.device(device).type != "meta":
            for name, parameter in list(module.named_parameters(remove_duplicate=False)):
                shape = torch.Size([0]) if (unit, name) in self.tied() else parameter.shape
                place = places.get(name)
                if place is None:
                    place = torch.empty(shape, device=device if there else "cpu")
                set_parameter(module, name, place)
            if self.trained is None:
                self.initialize(unit, module, seed=seed)
            else:
                self.trained.fill(unit, module)
        for name, parameter in list(module.named_parameters(remove_duplicate=False)):
            set_parameter(module, name, parameter.detach().to(device, dtype))
        self._share_within(unit, module)
        move_buffers(module, device)
        return module

    def empty_module(
        self,
        unit: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> nn.Module:
        """A module for units of this kind whose parameters hold nothing yet (0 elements).

        They take a view of any shape by `parameter.data = view`, which meta parameters refuse.
        """
        module = self._new(unit)
        for name, _ in list(module.named_parameters(remove_duplicate=False)):
            set_parameter(module, name, torch.empty(0, device=device, dtype=dtype))
        self._share_within(unit, module)
        move_buffers(module, device)
        return module

    def _new(self, unit: int) -> nn.Module:
        """A new module of the unit, its buffers those of trained weights where these have any."""
        module = self.skeleton(unit)
        if self.trained is not None and self.kept_buffers(unit):
            self.trained.fill_buffers(unit, module)
        return module

    def tie(self, units: Sequence[nn.Module]) -> None:
        """Have units of one process share what they have in common."""
        for (unit, name), (owner, owner_name) in self.tied().items():
            set_parameter(units[unit], name, units[owner].get_parameter(owner_name))

    def _share_within(self, unit: int, module: nn.Module) -> None:
        """Make a parameter that a unit has under two names one parameter."""
        for (of, name), (owner, owner_name) in self.tied().items():
            if of == owner == unit:
                set_parameter(module, name, module.get_parameter(owner_name))

    def shapes(self, unit: int) -> dict[str, torch.Size]:
        """Shape by local name of the parameters the unit owns, in the module's order."""
        return self._shapes[self.kind(unit)]

    @cached_property
    def _shapes(self) -> dict[str, dict[str, torch.Size]]:
        tied = self.tied()
        first = {self.kind(unit): unit for unit in reversed(range(self.num_units))}
        return {
            kind: {
                name: parameter.shape
                for name, parameter in self.skeleton(unit).named_parameters(remove_duplicate=False)
                if (unit, name) not in tied
            }
            for kind, unit in first.items()
        }

    def unit_parameters(self, unit: int) -> int:
        """Elements of the parameters the unit owns."""
        return sum(shape.numel() for shape in self.shapes(unit).values())

    def check_shared(self, prefix: str = "") -> None:
        """Raise ValueError for a parameter of several layers that a method cannot train whose
        middle layers visit the device one after another; told without the prefix of its name."""
        ends = (0, self.head)
        for (unit, local), (owner, _) in self.tied().items():
            if owner != unit and not (unit in ends and owner in ends):
                name = self.state_name(unit, local).removeprefix(prefix)
                raise ValueError(
                    f"parameter {name!r} is used in layers {owner} and {unit}; under this method "
                    "only the first and the last layer may share some; plain trains it"
                )

    def parameters_count(self) -> int:
        """Elements of all parameters, tied ones counted once."""
        return sum(self.unit_parameters(unit) for unit in range(self.num_units))

    def learns(self, unit: int, local_name: str) -> bool:
        """Whether a parameter is trained."""
        return True

    def decays(self, unit: int, local_name: str) -> bool:
        """Whether AdamW decays the parameter: matrices, not biases and norms (Megatron's rule)."""
        owner, name = self.tied().get((unit, local_name), (unit, local_name))
        return len(self.shapes(owner)[name]) > 1

    def flops(self, unit: int, batch: int, seq: int) -> float:
        """Floating-point operations of the forward pass on [batch, seq].

        Matrix products only, as Megatron counts them: 2 per token and matrix element, and 4 S H per
        token for attention (the causal half is not discounted). The embedding counts its additions.
        """
        tokens = batch * seq
        if unit == 0:
            return float(tokens * self.hidden)
        if unit == self.head:
            return 2.0 * tokens * self.hidden * self.vocab
        matrices = sum(shape.numel() for shape in self.shapes(unit).values() if len(shape) > 1)
        return 2.0 * tokens * matrices + 4.0 * tokens * seq * self.hidden


def set_parameter(module: nn.Module, name: str, value: Tensor) -> None:
    """Put `value`, made a parameter unless it is one, in the place of parameter `name`."""
    path, _, leaf = name.rpartition(".")
    parameter = value if isinstance(value, nn.Parameter) else nn.Parameter(value)
    setattr(module.get_submodule(path), leaf, parameter)


def move_buffers(module: nn.Module, device: torch.device | str) -> None:
    """Move buffers and keep their dtype: rotary frequencies in bf16 would be other frequencies."""
    for owner in module.modules():
        for name, buffer in list(owner.named_buffers(recurse=False)):
            setattr(owner, name, buffer.to(device))
