"""A user's module and loss function as one layered model, fed by a user's own loop.

The loss function is decomposed with the module: the tensors that it needs of a batch flow through
the layers to the last one. The user's module stays as it is. Layers hold its structure and none of
its weights, which are copied once into wherever a method keeps them.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

from workbench.model.base import Context, set_parameter
from workbench.model.called import Widened, call_of, one_number
from workbench.model.custom_model import APART, ASKS, EXAMPLE, empty
from workbench.model.decompose import Undecomposed, decompose
from workbench.model.drawn import unkeyed
from workbench.model.frozen import thaw
from workbench.model.keyed import make_keyed
from workbench.model.loss_again import LossAgain
from workbench.model.modules import Decomposed
from workbench.model.postponed import Postponed
from workbench.model.refused import refuse
from workbench.model.tables import tables_kept
from workbench.model.tally import proportional, told
from workbench.model.weights.given import Given, OneByOne

LossFunction = Callable[[Any, Any], Tensor]
"""(outputs of the module, batch) -> the mean loss of the batch, one number."""
Weigh = Callable[[Any], Tensor]
"""Batch -> how many labels of each of its samples count in the mean loss, [B]."""
WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers by their bytes."""
NO_MEAN = (
    "the loss of a batch is not the mean of those of its parts, in which it is computed{}: give a "
    "loss_fn that is a mean over rows which do not depend on each other, with weight_of where they "
    "count unequally, or leave the batch in one part"
)
COUNT = "num_items_in_batch"
"""Number of labels by which losses of transformers divide, as its Trainer gives it."""
PREFIX = "module."
"""Begins the names of the module's tensors in its `Objective`."""


class Batch:
    """A user's batch: tensors of B rows each in any tuples, lists and dictionaries, with other
    values between them that stay as they are from batch to batch."""

    def __init__(
        self, batch: Any, weight_of: Weigh | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        """Passes round numbers to `dtype`; of those of another one the loss function is to get the
        bits, as whole numbers behind the others. Raises ValueError for a batch without tensors,
        with tensors of unlike rows or a count of labels, and where `weight_of` gives no number a
        row."""
        if isinstance(batch, Mapping) and COUNT in batch:
            raise ValueError(
                f"the batch has {COUNT!r}; leave it out, batch.pop({COUNT!r}): the engine counts "
                "the labels of all parts of a batch by itself"
            )
        batch = dict(batch) if isinstance(batch, Mapping) else batch
        leaves, self.form = tree_flatten(batch)
        found = (leaf.detach().cpu() for leaf in leaves if isinstance(leaf, Tensor))
        self.tensors = [t.clone() if t.is_inference() else t for t in found]  # else no gradients
        self.others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if not self.tensors or not self.tensors[0].dim():
            raise ValueError("the batch must hold tensors whose first dimension counts its samples")
        self.rows = len(self.tensors[0])
        for tensor in self.tensors:
            if not tensor.dim() or len(tensor) != self.rows:
                raise ValueError(
                    f"the batch has tensors of {tuple(self.tensors[0].shape)} and of "
                    f"{tuple(tensor.shape)}; the first dimension of each counts its samples"
                )
        self._rounded = [
            (n, t.dtype)
            for n, t in enumerate(self.tensors)
            if t.is_floating_point() and t.dtype != dtype
        ]
        bits = (self.tensors[n].clone().view(WHOLE[of.itemsize]) for n, of in self._rounded)
        self.tensors.extend(bits)
        self.weights = torch.ones(self.rows) if weight_of is None else _weighed(weight_of(batch))
        """How much each row counts in the mean loss, fp32 on the CPU."""
        if self.weights.shape != (self.rows,) or not (self.weights >= 0).all():
            raise ValueError(
                f"weight_of gives {self.weights.tolist()!r:.80} for a batch of {self.rows} rows; "
                "it must give a number from 0 on for each"
            )

    def check_parts(self, parts: int, *, each: bool) -> None:
        """Raise ValueError for a batch without a label, whose mean loss is no number, and for one
        of fewer rows than parts; for a part without a label, if `each` has to have one."""
        if self.rows < parts:
            raise ValueError(
                f"the batch has {self.rows} row{'s' * (self.rows > 1)} for {parts} "
                "microbatches; leave it out, or give fewer microbatches"
            )
        sums = [float(part.sum()) for part in self.weights.tensor_split(parts)]
        if max(sums) == 0:
            raise ValueError(
                "no label counts in the batch, so it has no mean loss; leave it out, or samples "
                "without a label"
            )
        if each and min(sums) == 0:
            raise ValueError(
                f"no label counts in micro-batch {sums.index(0)} of {len(sums)}, so it has no "
                "mean loss; give fewer microbatches, or leave out samples without a label"
            )

    def __deepcopy__(self, memo: dict) -> Batch:
        return self

    def filled(self, tensors: Sequence[Tensor], *, exact: bool = False) -> Any:
        """A batch of this form with other tensors, of which passes may have rounded some; `exact`:
        as they were before."""
        leaves, own = list(self.others), list(tensors[: len(self.places)])
        if exact:
            for (n, dtype), bits in zip(self._rounded, tensors[len(own) :], strict=True):
                own[n] = bits.view(dtype)
        for place, tensor in zip(self.places, own, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self.form)

    def counting(self, rows: int) -> Tensor:
        """Numbers of so many rows, those that count in the loss first, again where there are
        fewer."""
        order = (self.weights > 0).int().argsort(descending=True, stable=True)
        return order[torch.arange(rows) % self.rows]

    def named(self, rows: int | None = None) -> dict[str, Tensor]:
        """The tensors by names in their order; of so many rows, of which there may be fewer."""
        part = slice(None) if rows is None else self.counting(rows)
        return {f"tensor{n:03}": tensor[part] for n, tensor in enumerate(self.tensors)}

    def told(self) -> str:
        """Its parts by their last names, with the values of those that are no tensors."""
        paths, _ = tree_flatten_with_path(tree_unflatten(self.others, self.form))
        names = [getattr(p[-1], "key", getattr(p[-1], "idx", "")) if p else "" for p, _ in paths]
        each = enumerate(zip(names, self.others, strict=True))
        return ", ".join(
            f"{name}" if n in self.places else f"{name} {other!r:.40}" for n, (name, other) in each
        )

    @property
    def lengths(self) -> tuple[torch.Size, ...]:
        """Shapes of a row's tensors."""
        return tuple(tensor.shape[1:] for tensor in self.tensors)

    def check_like(self, first: Batch, *, shorter: bool) -> None:
        """Raise ValueError for a batch of another form, or with other values, than the first one,
        or larger; of one that is smaller, unless it may be `shorter`."""
        if self.form != first.form or self.others != first.others:
            raise ValueError(
                f"the batch has {self.told()} and the first one had {first.told()}; give equal "
                "parts in one order, such as a mask of ones where nothing is masked, and numbers "
                "that change in tensors"
            )
        for one, other in zip(self.tensors, first.tensors, strict=True):
            fits = one.shape == other.shape
            if shorter and one.dim() == other.dim():
                fits = all(a <= b for a, b in zip(one.shape, other.shape, strict=True))
            if not fits or one.dtype != other.dtype:
                advice = "leave out a last batch that is smaller"
                if shorter:
                    advice = "begin with the largest batch, for which all is planned, or pad to it"
                elif self.rows == first.rows:
                    advice = "make all batches of one shape, as by padding"
                raise ValueError(
                    f"the batch has {one.dtype} of {tuple(one.shape)} where the first one had "
                    f"{other.dtype} of {tuple(other.shape)}; {advice}"
                )


class Objective(nn.Module):
    """The mean loss of a module's outputs, called with the tensors of a batch."""

    def __init__(
        self,
        module: nn.Module,
        loss_fn: LossFunction,
        first: Batch,
        *,
        weighs: bool = False,
        no_decay: Collection[str] = (),
        values: Given | None = None,
    ) -> None:
        """Shares the module's parameters, in a copy of its structure. `weighs`: rows of batches may
        count unequally. Parameters of the module in `no_decay` are trained without weight decay.
        `values` are those of parameters on the meta device, by their names here; shared by copies.
        Raises ValueError for a module that cannot be copied, or whose arguments a batch like
        `first` does not have."""
        super().__init__()
        self.values = values
        self.name, self.weighs = type(module).__name__, weighs
        self.no_decay = {PREFIX + name for name in no_decay}
        refuse(module, self.name)
        if not module.training:
            raise ValueError(f"{self.name} is in evaluation mode; call its train() before")
        every = module.parameters()
        own = {id(p): nn.Parameter(p.data, requires_grad=p.requires_grad) for p in every}
        try:
            self.module = copy.deepcopy(module, own)
        except Exception as error:  # whatever its code raises
            raise ValueError(f"{self.name} cannot be copied: {error}".split("\n")[0]) from error
        for part in self.module.modules():  # of Hugging Face's, whose cache no loss reads
            if getattr(getattr(part, "config", None), "use_cache", False) is True:
                part.config.use_cache = False
        self.loss_fn, self.first, self.again = loss_fn, first, LossAgain()
        self._given, self._parts = weighs, None
        if strange := [n for n, _ in self.named_parameters() if not n.startswith(PREFIX)]:
            raise ValueError(f"loss_fn has parameters, such as {strange[0]!r}; the module must")
        self._call = self._called(module)

    def _called(self, module: nn.Module) -> Callable[[Any], tuple[Sequence, Mapping]]:
        """How the module is called with a batch."""
        return call_of(module, self.first.filled(self.first.tensors))

    @property
    def criterion(self) -> Callable[[Any, Any], Tensor]:
        """Makes the number that is differentiated of what `forward` puts out, beside layers."""
        return one_number

    def forward(self, *tensors: Tensor, **named: Tensor) -> Tensor:
        """`named` are the tensors by names whose order is theirs."""
        given = tensors or [named[name] for name in sorted(named)]
        args, kwargs = self._call(self.first.filled(given))
        outputs, batch = self.module(*args, **kwargs), self.first.filled(given, exact=True)
        self.again.note(given, outputs)
        with Widened(outputs):
            return self.loss_fn(outputs, batch)

    def divide(self, model: Decomposed) -> None:
        """Have batches computed in parts by the layers of a model, and the first one weighed so.
        Raises ValueError where that is another training, or nobody can tell."""
        parts = model.parted
        if model.draws_together:
            raise ValueError(
                "a layer draws random numbers for all rows of a micro-batch together, and parts of "
                "a batch would draw others; leave the batch in one part, or draw a number a row"
            )
        if why := parts.joins or ("" if self._given else parts.wrong):
            raise ValueError(NO_MEAN.format(f" ({why})"))
        if not parts.wrong:
            self._parts, self.weighs = parts, self.weighs or parts.counts_differ
            self.weigh(self.first)

    def weigh(self, batch: Batch) -> None:
        """Have the rows of a batch that is computed in parts count as they do in the loss. Raises
        ValueError where the caller counted otherwise."""
        if self._parts is None:
            return
        counts = self.counts(batch.tensors)
        if self._given and not proportional(counts, batch.weights):
            raise ValueError(
                f"weight_of counts the rows of this batch {told(batch.weights)}, and the loss "
                f"itself {told(counts)}; leave weight_of out, and the engine counts as it does"
            )
        batch.weights = counts

    def counts(self, tensors: Sequence[Tensor]) -> Tensor:
        """How much each row of a batch counts, [B]."""
        return torch.ones(len(tensors[0])) if self._parts is None else self._parts.counts(tensors)

    def twin(self) -> Objective:
        """Another one over the same numbers."""
        return copy.deepcopy(
            self, {id(p): nn.Parameter(p.data, p.requires_grad) for p in self.parameters()}
        )

    def weights(self) -> dict[str, Tensor] | Given:
        """First values of all parameters by all their names, some in types that are narrower."""
        if self.values is not None:
            return self.values
        every = self.named_parameters(remove_duplicate=False)
        return {name: parameter.detach() for name, parameter in every}

    def fill(self) -> None:
        """Have all first values in memory, in fp32, for methods that do not make units."""
        every = self.values and self.named_parameters(remove_duplicate=False)
        filled: dict[int, nn.Parameter] = {}
        for name, parameter in [*(every or ())]:
            if id(parameter) not in filled:
                value = self.values[name].to(parameter.dtype, copy=True)
                filled[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
            set_parameter(self, name, filled[id(parameter)])
        self.values = None

    def layered(self) -> tuple[Decomposed, dict[str, Tensor] | Given]:
        """Its layers, which hold no weights, and the user's weights by their names, from which they
        are made as long as these are there. Raises ValueError for what cannot be cut."""
        with tables_kept(self):
            return self._layered()

    def _layered(self) -> tuple[Decomposed, dict[str, Tensor] | Given]:
        weights = self.weights()
        make_keyed(self.train())
        frozen = thaw(self)
        example = tuple(self.first.named(EXAMPLE).values())
        with unkeyed():
            try:
                layers = decompose(self, example, criterion=self.criterion)
            except Undecomposed as error:
                reason = self.name + error.reason.removeprefix(type(self).__name__)
                reason = re.sub(r"Objective.forward, line \d+", "its call, or in loss_fn", reason)
                raise ValueError(reason + ASKS * error.asks) from error
        if len(layers) < 2:
            raise ValueError(f"{self.name} is one layer; two with weights are needed{APART}")

        @torch.no_grad()
        def initial(module: nn.Module, unit: int, seed: int) -> None:
            for name, parameter in module.named_parameters(remove_duplicate=False):
                if name not in layers[unit].shared:
                    parameter.copy_(weights[layers[unit].state[name]])

        empty(layers)
        model = Layered(
            self, layers, initial, hidden=1, vocab=1, max_seq=1,
            targets=torch.zeros(EXAMPLE), frozen=frozen, foreign=True,
        )  # fmt: skip
        if self.values is not None:
            model.trained = OneByOne(model, self.values.files)
        return model, weights


class Layered(Decomposed):
    """Layers of an `Objective`. AdamW decays all trained parameters, as torch's own does, but for
    those that the user's groups leave out. Targets are how much each sample counts."""

    _module: Objective

    def forward(
        self, unit: int, module: nn.Module, x: Any, ctx: Context, targets: Tensor | None = None
    ) -> Any:
        """As any module's; logits of a large head are there in parts."""
        with Postponed() if unit == self.head else nullcontext():
            return super().forward(unit, module, x, ctx, targets)

    def modules_by_path(self) -> Iterator[tuple[str, nn.Module]]:
        """All modules of the objective."""
        return self._module.named_modules()

    def decays(self, unit: int, local_name: str) -> bool:
        left_out = self._units[unit].state[local_name] in self._module.no_decay
        return self.learns(unit, local_name) and not left_out

    @property
    def counts_differ(self) -> bool:
        return self._module.weighs

    def divide(self) -> None:
        """As `Objective.divide`."""
        self._module.divide(self)

    def counted(self, targets: Tensor) -> list[float]:
        return targets.tolist()


class Handed:
    """Samples that a user's loop hands over step by step, each followed by how much it counts: the
    targets that methods want beside are in the batch. A `Data`."""

    def __init__(self, first: Batch, model: Decomposed) -> None:
        self.batch, self._most = first, first.rows
        shapes = str([[*model.shapes(unit).items()] for unit in range(model.num_units)])
        self.digest = hashlib.sha256(shapes.encode()).hexdigest()
        """Of the module: data is the loop's own matter."""

    def take(self, batch: Batch) -> None:
        """The samples of the next step."""
        self.batch = batch

    def of(self, step: int) -> tuple[int, ...]:
        """Global numbers of the samples of a step, which may be fewer than those of the first."""
        return tuple(range(step * self._most, step * self._most + self.batch.rows))

    def rows(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        """Samples of the step that was taken last; views, where they are neighbours."""
        first = samples[0] % self._most
        part: slice | list[int] = slice(first, first + len(samples))
        if samples[-1] - samples[0] + 1 != len(samples):
            part = [sample % self._most for sample in samples]
        return *(tensor[part] for tensor in self.batch.tensors), self.batch.weights[part]


def _weighed(found: Any) -> Tensor:
    if not isinstance(found, Tensor):
        raise ValueError(f"weight_of gives a {type(found).__name__}; it must give a tensor")
    return found.detach().to("cpu", torch.float32)
