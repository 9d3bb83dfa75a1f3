"""Operations that are known to keep the rows of a batch apart.

A tensor with rows has them along one dimension, in the order of the batch: each is `inner` entries
next to each other there, which are more than one where dimensions were merged, and all rows may be
there several times. So a slice, a transposed view or a look into a table of rows is told by shapes
and arguments. An operation that nothing here knows, or whose arguments mix rows, joins them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from workbench.model.tally import Done, tensors_in
from workbench.model.traits import MORE, SAMPLES

SAME = frozenset(("zeros_like", "ones_like", "full_like", "empty_like"))
EQUAL = SAME | frozenset((
    "zeros", "ones", "full", "empty", "empty_strided", "new_zeros", "new_ones", "new_full",
    "new_empty", "new_empty_strided", "rand", "randn", "randint",
))  # fmt: skip
"""Operations that put out tensors whose entries are equal, or random."""
ALIGNED = frozenset((
    "copy", "_to_copy", "fill", "zero", "alias", "detach", "lift_fresh", "masked_fill", "rsub",
    "polar", "_conj", "_prelu_kernel", "hardswish", "eq", "floor_divide", "log_sigmoid_forward",
    "mm", "addmm", "bmm", "baddbmm", "mse_loss", "huber_loss", "smooth_l1_loss", "where",
    "soft_margin_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "bernoulli",
    "native_dropout", "normal", "poisson", "rand_like", "randn_like", "randint_like", "uniform",
    "rrelu_with_noise", "expand", "exponential", "random", "log_normal", "cauchy", "geometric",
    "repeat", "constant_pad_nd",
))  # fmt: skip
"""Operations beside pointwise ones whose operands have rows where the output has them, counted
from the last dimension."""
ALONE = frozenset((
    "view_as_complex", "view_as_real", "permute", "transpose", "t", "unsqueeze", "squeeze", "mv",
    "select", "unbind", "_grouped_mm", "grouped_mm_fallback", "bucketize", "searchsorted", "isin",
))  # fmt: skip
"""Operations of one tensor with rows that keep their order."""
COPIES = frozenset((
    "copy", "_to_copy", "clone", "alias", "detach", "lift_fresh", "expand", "view", "_unsafe_view",
    "unsqueeze", "squeeze", "permute", "transpose", "t", "slice",
))  # fmt: skip
"""Operations that put out numbers of rows where they are given some."""
ALONG = frozenset((
    "_softmax", "_safe_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "cummax",
    "cummin", "flip", "roll", "sort", "topk", "sum", "mean", "amax", "amin", "max", "min",
    "argmax", "argmin", "all", "any", "prod", "logsumexp", "var", "std", "var_mean", "std_mean",
    "linalg_vector_norm", "norm", "median", "nanmedian", "mode", "kthvalue", "glu", "unfold",
    "_fft_r2c", "_fft_c2r", "_fft_c2c", "linalg_cross", "count_nonzero", "aminmax", "nansum",
    "index_fill", "index_add", "index_copy", "slice_scatter", "select_scatter",
))  # fmt: skip
"""Operations on entries of the dimensions that they name."""
MATRICES = frozenset((
    "tril", "triu", "_cdist_forward", "_euclidean_dist", "linalg_inv_ex", "linalg_cholesky_ex",
    "_linalg_det", "_linalg_slogdet", "linalg_lu_factor_ex", "_linalg_solve_ex",
    "_linalg_eigh", "_linalg_svd", "linalg_qr", "linalg_solve_triangular", "linalg_matrix_exp",
))  # fmt: skip
"""Operations on the last two dimensions."""
PICKS = frozenset(("gather", "scatter", "scatter_add", "scatter_reduce"))
VIEWS = frozenset(("view", "_unsafe_view", "_reshape_alias"))
SPLITS = frozenset(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"))


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor."""

    dim: int
    inner: int
    """Neighbouring entries of the dimension that are one row's; 0 where all entries are equal."""
    numbers: int = 0
    """Where each entry is the number of its row times something, that."""


class Call:
    """An operation, for two numbers of rows."""

    def __init__(self, one: Done, wide: Done, known: Mapping[int, Rows], *, normed: bool) -> None:
        """`known`: rows of tensors, by their ids; `normed`: whether it is BatchNorm's own."""
        self.name = one.func.overloadpacket.__name__.removesuffix("_")
        self._known, self._normed = known, normed
        named = {each.name: each.default_value for each in one.func._schema.arguments}
        self._named = {**named, **dict(zip(named, one.args, strict=False)), **one.kwargs}
        given = tensors_in((one.args, one.kwargs))
        self._given = [(t, known[id(t)]) for t in given if id(t) in known]
        self.apart = True
        """Whether the operation keeps rows apart."""
        self.rows = [self._made(*pair) for pair in zip(one.shapes, wide.shapes, strict=True)]
        """Rows of each tensor that the operation puts out."""
        inner = {rows.inner for _, rows in self._given if rows.inner}
        if len(inner) > 1 and self.name != "_embedding_bag":
            self.apart = False

    def _made(self, made: torch.Size, more: torch.Size) -> Rows | None:
        unlike = [n for n, (a, b) in enumerate(zip(made, more, strict=True)) if a != b]
        if not unlike:
            return None
        dim, size = unlike[0], made[unlike[0]]
        each, rest = divmod(size, SAMPLES)
        stays = len(unlike) == 1 and not rest and more[dim] == each * MORE
        found = self._after(made, dim) if stays else None
        if found is None:
            self.apart = False
            return Rows(dim, max(1, each))
        return found

    def _after(self, made: torch.Size, dim: int) -> Rows | None:
        """Rows along a dimension of the output, if they were kept apart."""
        name, (first, own) = self.name, self._given[0] if self._given else (None, None)
        size = made[dim]
        if name in EQUAL:
            return Rows(dim, 0)
        if own is None:
            if name == "arange":
                by = self._named.get("step", 1)
                counts = not self._named.get("start") and size == SAMPLES
                return Rows(dim, 1, numbers=by) if counts else None
            return Rows(dim, size // SAMPLES) if name in ("expand", "repeat") else None
        inner = max(rows.inner for _, rows in self._given)
        numbers = {rows.numbers for _, rows in self._given}
        found = Rows(dim, inner, min(numbers) if name in COPIES else 0)
        if name in ("index", "index_put"):
            return found if self._indexed() else None
        if name == "_embedding_bag":
            offsets = self._known.get(id(self._named["offsets"]), found)
            return Rows(dim, 1) if offsets.numbers == inner and len(numbers) == 2 else None
        if numbers != {found.numbers}:
            return None
        if name in VIEWS:
            return self._viewed(first, own, made, found)
        return found if self._keeps(first, own, made, dim) else None

    def _keeps(self, first: Tensor, own: Rows, made: torch.Size, dim: int) -> bool:
        name, alone = self.name, len(self._given) == 1
        least = min(t.dim() - rows.dim for t, rows in self._given)
        equal = len({rows.dim for _, rows in self._given}) == 1
        along = [d % first.dim() for d in _whole(self._named, "dim", "dims", "dimension")]
        if "batch_norm" in name:
            trains = self._named.get("training", self._named.get("train", True))
            trains = trains and not name.endswith("no_training")
            return own.dim == 1 or (alone and (not trains or self._normed))
        if name in ("native_layer_norm", "_fused_rms_norm"):
            return alone and least > len(self._named["normalized_shape"])
        if name in ("native_group_norm", "convolution", "multinomial", "nll_loss_forward"):
            return own.dim == 0 and equal and (alone or name == "nll_loss_forward")
        if name in ("_trilinear", "affine_grid_generator", "im2col", "col2im"):
            return own.dim == 0 and equal and least == {"im2col": 4, "col2im": 3}.get(name, least)
        if name == "embedding":
            return alone and id(self._named["weight"]) not in self._known
        if name == "index_select":
            index = id(self._named["index"]) in self._known
            return alone and (index or own.dim not in along)
        if name in PICKS:
            return self._picked(own, along)
        if name == "slice" and own.dim in along:
            start = (self._named["start"] or 0) % first.shape[own.dim]
            block = SAMPLES * max(1, own.inner)
            return self._named["step"] == 1 and start % block == made[dim] % block == 0
        if name in SPLITS and own.dim in along:
            return made[dim] % (SAMPLES * max(1, own.inner)) == 0
        if name in ("cat", "stack"):
            return equal and all(id(t) in self._known for t in self._named["tensors"] if t.numel())
        if name in ALONG:
            return equal and own.dim not in along and bool(along)
        if name in MATRICES or name in ("pixel_shuffle", "pixel_unshuffle"):
            return equal and least > (2 if name in MATRICES else 3)
        if spatial := re.search(r"([123])d(_|$)", name):
            return equal and least > int(spatial[1])
        if name in SPLITS or name == "slice" or name in ALONE:
            return alone
        ends = {t.dim() - rows.dim for t, rows in self._given}
        return (name in ALIGNED or _pointwise(name)) and ends == {len(made) - dim}

    def _viewed(self, first: Tensor, own: Rows, made: torch.Size, found: Rows) -> Rows | None:
        """Rows of a tensor that has other dimensions over the same entries."""
        if not own.inner:
            return found
        before = prod(first.shape[: own.dim]) * (first.shape[own.dim] // (SAMPLES * own.inner))
        outer, rest = divmod(before, prod(made[: found.dim]))
        if rest or not outer or made[found.dim] % (outer * SAMPLES):
            return None
        return replace(found, inner=made[found.dim] // (outer * SAMPLES))

    def _indexed(self) -> bool:
        """Whether rows are looked for in their own row, or in what has none."""
        table, values = self._named["self"], self._named.get("values")
        indices, rows = self._named["indices"], self._known.get(id(table))
        growing = [(t, self._known[id(t)]) for t in indices if id(t) in self._known]
        whole = growing + [(t, self._known[id(t)]) for t in [values] if id(t) in self._known]
        aligned = len({t.dim() - of.dim for t, of in whole}) <= 1
        if rows is None:
            return aligned and not any(of.numbers for _, of in growing)
        own = indices[rows.dim] if rows.dim < len(indices) else None
        if growing and growing[0][0].dtype == torch.bool:
            return len(indices) == 1 and len(whole) == 1 and growing[0][1].dim == rows.dim
        if own is None:
            return not whole
        numbered = id(own) in self._known and self._known[id(own)].numbers == 1
        return numbered and aligned and table.shape[rows.dim] == SAMPLES

    def _picked(self, own: Rows, along: list[int]) -> bool:
        """Whether a pick of entries by an index tensor stays within each row."""
        names = ("index",) if self.name == "gather" else ("self", "index", "src")
        every = [t for t in map(self._named.get, names) if isinstance(t, Tensor)]
        table = self._known.get(id(self._named["self"]))
        if table is None:
            return own.dim in along
        every_grows = all(id(t) in self._known for t in every)
        return every_grows and all(
            rows.dim == table.dim and rows.dim not in along for _, rows in self._given
        )


@cache
def _pointwise(name: str) -> bool:
    """Whether torch calls an operation so, in any of its forms."""
    packet = getattr(torch.ops.aten, name, None)
    forms = packet.overloads() if packet else ()
    return any(torch.Tag.pointwise in getattr(packet, form).tags for form in forms)


def _whole(named: Mapping[str, Any], *names: str) -> list[int]:
    found = next((named[name] for name in names if named.get(name) is not None), [])
    return [found] if isinstance(found, int) else [*found]
