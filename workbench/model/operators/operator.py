"""One operator of a list, and a tensor that travels past several: data, which no name implies.

Costs, searches, profilers and the runtime read these fields; none of them looks at a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from workbench.model.operators.layout import Factors, Layout

Kind = Literal[
    "embedding", "layernorm", "qkv", "cross-qkv", "score", "softmax", "dropout", "context",
    "linear", "add-dropout", "gelu", "head",
    "rmsnorm", "grouped-qkv", "rotary", "gate-up", "swiglu",
    "conv", "batchnorm", "relu", "maxpool", "add", "downsample-add", "avgpool", "classifier",
    "layer",
]  # fmt: skip
"""Computations of an operator. `qkv`: one GEMM for queries, keys and values. `cross-qkv`: queries
of the decoder, keys and values of the encoder's output. `linear`: a GEMM whose bias the next
operator adds. `add-dropout`: bias, dropout and residual. `head`: logits and loss. `add`: the
residual as it is; `downsample-add`: after a convolution of 1x1 and its batch norm. `grouped-qkv`:
three GEMMs, with fewer heads of keys and values than of queries; `rotary` turns queries and keys.
`gate-up`: two GEMMs, of which `swiglu` multiplies the sigmoid-weighted first by the second.
`layer`: one of a user's own module, whatever it computes."""

Layouts = tuple[Layout, Layout]
"""Of an operator's input and output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """An operator of a model, at its place."""

    name: str
    """Unique in a list of one block; repeated by those of all blocks that are alike."""
    kind: Kind
    layouts: tuple[Layouts, Layouts]
    """By partition dimension: 0, the usual one (output columns, or input rows after them; output
    channels), and 1, the other one."""
    tunable: bool = False
    """Whether tp, dp and the partition dimension may change here, inside a stage."""
    starts_layer: bool = False
    """Whether its input is kept, whatever is recomputed: a segment of recomputation begins here."""
    chosen: bool = True
    """Whether a choice by sizes may begin a recomputed pair here."""
    kept: float = 1.0
    """Profiled activations that count: 0 where the next operator's are the same memory, 1.5 where a
    mask is kept, too."""

    def layout(self, side: int, *, algo: int, tp: int, dp: int) -> Factors:
        """Of its input (side 0) or output (side 1)."""
        return self.layouts[algo][side].factors(tp, dp)


@dataclass(frozen=True, kw_only=True, slots=True)
class Extra:
    """A tensor that an operator hands on past its neighbour, beside the main tensor."""

    name: str
    made_by: int
    """Index of the operator that has it as an output, or as its own input."""
    read_by: tuple[int, ...]
    """Indices of the operators that take it, in order; it is alive up to the last of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorList:
    """A model as a flat, ordered list of operators."""

    family: str
    operators: tuple[Operator, ...]
    rows: tuple[int, ...]
    """Of each operator, its row in a profile, which holds alike operators once."""
    row_names: tuple[str, ...]
    """Names of the rows of a profile, in order."""
    extras: tuple[Extra, ...]
    layers: tuple[int, ...]
    """First operator of each layer, or block: of T5, of the encoder's and then of the decoder's."""
    towers: tuple[int, ...]
    """Numbers of layers that follow each other with nothing between: of T5, two."""
    partitions: int
    """Partition dimensions that were published: 2, or 1 where only the usual one was."""
    reshards: bool
    """Whether layouts may differ between neighbours of a stage."""
    apart: bool = False
    """Whether each operator is recomputed by itself, from its input, which is kept; activations are
    then what it keeps beside that."""

    def __len__(self) -> int:
        return len(self.operators)

    def alive(self, boundary: int) -> tuple[Extra, ...]:
        """Extra tensors that cross the boundary before operator `boundary`."""
        return tuple(e for e in self.extras if e.made_by < boundary <= e.read_by[-1])


Sketch = tuple[str, str, tuple[str, ...]]
"""An extra tensor by names: its own, its maker's, its readers'."""


def extras_of(
    sketches: tuple[Sketch, ...], place: Callable[[str], int], block: str = ""
) -> tuple[Extra, ...]:
    """The extra tensors of a block whose operators' places `place` tells."""
    return tuple(
        Extra(name=block + name, made_by=place(made), read_by=tuple(map(place, read)))
        for name, made, read in sketches
    )
