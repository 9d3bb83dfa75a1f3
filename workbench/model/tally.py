"""Sums over the rows of a batch that its loss is divided by, done for each row by the operations
that a run of the loss did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from workbench.model.traits import SAMPLES

CLOSE = 1e-6
"""Relative difference that is a rounding of fp32."""


class Done(NamedTuple):
    """An operation of a run."""

    func: Any
    args: tuple
    kwargs: dict[str, Any]
    made: list[Tensor]
    shapes: Sequence[torch.Size] = ()
    """Of what it made, which a later operation may transpose in place."""


class Literals(TorchFunctionMode):
    """Keeps the values of tensors that code makes of numbers where tensors have none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor]] = []
        """(a tensor without values, one with them)."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor) and out.is_meta and not tensors_in(args):
            self.found.append((out, func(*args, **{**(kwargs or {}), "device": "cpu"})))
        return out


class Tally:
    """A sum over the rows of a batch."""

    def __init__(
        self, done: Iterable[Done], source: Tensor, inputs: dict[int, int],
        constants: dict[int, Tensor], *, whole: bool,
    ) -> None:  # fmt: skip
        """`done`, of `SAMPLES` rows, made `source` of `inputs`: id of a tensor there -> its place
        in the batch. `whole`: a row is taken to add 0, or 1 at least."""
        self._source, self._inputs, self._constants = source, inputs, constants
        self._whole, self._done, needed = whole, list[Done](), {memory_of(source)}
        for one in reversed([*done]):
            if not needed.isdisjoint(map(memory_of, one.made)):
                self._done.insert(0, one)
                needed |= {*map(memory_of, tensors_in((one.args, one.kwargs)))}

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """How much each row adds, fp32. Raises ValueError where that is too little."""
        given = [tensors[place] for place in self._inputs.values()]
        try:
            found = torch.vmap(self._row)(*given)
        except Exception:  # an operation has no such form
            found = torch.stack([self._row(*row) for row in zip(*given, strict=True)])
        found = found.reshape(len(found)).float()
        if self._whole and bool(((found > 0) & (found < 1)).any()):
            raise ValueError(
                f"a row counts {float(found[found > 0].min()):g} in a divisor of the loss that is "
                "no less than 1, so that it is no mean of its parts'; leave the batch in one part"
            )
        return found

    def _row(self, *row: Tensor) -> Tensor:
        """A part of what a row adds that is there as often as the operations want rows."""
        known = dict(self._constants)
        for at, tensor in zip(self._inputs, row, strict=True):
            known[at] = torch.stack([tensor] * SAMPLES)

        def put(leaf: Any) -> Any:
            home = isinstance(leaf, torch.device)
            return torch.device("cpu") if home else known.get(id(leaf), leaf)

        for one in self._done:
            args, kwargs = tree_map(put, (one.args, one.kwargs))
            made = tensors_in(one.func(*args, **kwargs))
            known |= {id(old): new for old, new in zip(one.made, made, strict=True)}
        return known[id(self._source)] / SAMPLES


def labels_in(target: Tensor, weight: Tensor | None, ignored: int) -> Tensor:
    """The weights of all labels that count, in sum."""
    counts = target != ignored
    if weight is None:
        return counts.sum()
    return weight[target.where(counts, 0)].where(counts, 0).sum()


def proportional(one: Tensor, other: Tensor) -> bool:
    """Whether two counts weigh rows alike."""
    return torch.allclose(one * other.sum(), other * one.sum(), rtol=10 * CLOSE, atol=0.0)


def told(counts: Tensor) -> str:
    """Counts of rows for people."""
    words = " ".join(f"{count:g}" for count in counts[:8].tolist())
    return words + " ..." * (len(counts) > 8)


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors in nested containers."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def memory_of(tensor: Tensor) -> int:
    """Equal for tensors that share memory."""
    return tensor.untyped_storage()._cdata
