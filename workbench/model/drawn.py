"""Random numbers of a module as it is written, made to depend on samples and not on its passes.

Whatever draws in a forward pass takes the next *place*: draws are numbered through the whole model
in the order in which its code makes them. A number drawn belongs to (seed, step, sample, place), so
a pass that is repeated, a batch that is divided, and a model that is cut into layers all see the
same numbers. Which dimension of a drawn tensor counts the samples is seen when a layer is looked at
(traits.py), once with two samples and once with three. A tensor that does not grow with the batch
is drawn once for a step. One that grows otherwise is drawn for a micro-batch as a whole.

`nn.Dropout` asks for its place itself (keyed.py). All else that draws is noticed below autograd, as
an operation that torch marks as random.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.model.base import Context
from workbench.model.dropout import seeded
from workbench.model.keys import key

_RUNNING = threading.local()
_ATEN = torch.ops.aten
FILLS: dict[Any, Callable[..., Tensor]] = {
    _ATEN.rand: lambda row, generator: row.uniform_(generator=generator),
    _ATEN.rand_like: lambda row, generator: row.uniform_(generator=generator),
    _ATEN.randn: lambda row, generator: row.normal_(generator=generator),
    _ATEN.randn_like: lambda row, generator: row.normal_(generator=generator),
}
"""Functions that put out a new tensor of random numbers, and how to fill a part of one."""
IN_PLACE = ("bernoulli_", "uniform_", "normal_", "exponential_", "random_", "log_normal_")
BY_ROWS = (
    "bernoulli", "normal", "poisson", "binomial", "multinomial", "_standard_gamma", "randint",
    "_sample_dirichlet", "randint_like",
)  # fmt: skip
"""Functions that draw each row by probabilities, or within bounds, of its own."""


class Draw(NamedTuple):
    """A place, as it was seen when its layer was looked at."""

    dim: int | None
    """The dimension that counts the samples; None for a tensor that does not grow with them."""
    whole: bool
    """Whether it is drawn for a micro-batch as a whole, since nobody knows which part of it is of
    which sample."""
    hidden: bool
    """Whether only torch says that it draws."""


class Pass:
    """One pass of a layer, or of a whole module, on a micro-batch."""

    def __init__(
        self, ctx: Context, draws: Sequence[Draw] = (), places: Sequence[int] | None = None
    ) -> None:
        """`draws` of the whole model; `places` of those of this pass, by default all."""
        self.ctx, self.draws = ctx, draws
        self.places = range(len(draws)) if places is None else places
        self.drawn = 0
        """Draws so far."""
        self.filling = False
        """Whether numbers of a place are drawn now."""
        self.calls: dict[int, int] = {}
        """Calls so far of each BatchNorm module, by its id."""

    def again(self) -> Pass:
        """A repetition of what comes next."""
        copy = Pass(self.ctx, self.draws, self.places)
        copy.drawn, copy.calls = self.drawn, dict(self.calls)
        return copy

    def next_draw(self, shape: torch.Size, *, hidden: bool) -> tuple[int | None, list[int]]:
        """(dimension to draw along, a seed for each entry there) of the next draw; or (None, one
        seed). Raises ValueError where the layer drew otherwise when it was looked at."""
        place, ctx = -1, self.ctx
        if self.drawn < len(self.places):
            place = self.places[self.drawn]
        self.drawn += 1
        draw = self.draws[place] if place >= 0 else None
        known = draw is not None and draw.hidden == hidden
        if known and draw.dim is not None:
            known = draw.dim < len(shape) and shape[draw.dim] == len(ctx.samples)
        if not known:
            raise ValueError(
                f"a layer draws other random numbers (a tensor of {tuple(shape)}) than when it was "
                "looked at: what it draws follows values, which is not known before it runs"
            )
        of = (ctx.seed, "drawn", ctx.step)
        if draw.dim is not None and not draw.whole:
            return draw.dim, [key(*of, sample, place) for sample in ctx.samples]
        return None, [key(*of, *([ctx.samples[0]] if draw.whole else []), place)]


class Seen(Pass):
    """A pass that notes what is drawn, and of what shape; it is spared the keys."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.shapes: list[tuple[torch.Size, bool, bool]] = []
        """(shape, whether it can be drawn by parts, whether it is hidden) of each draw."""
        self.norms: dict[str, int] = {}
        """The calls of BatchNorm modules, by their paths."""


class _Unkeyed:
    """Runs instead of a pass where nothing is trained."""


_UNKEYED = _Unkeyed()


def current() -> Pass | None:
    """The pass that this thread runs; None where it does not matter what is drawn."""
    running = getattr(_RUNNING, "of", None)
    return None if running is _UNKEYED else running


def is_looked_at() -> bool:
    """Whether this thread only looks at a model: what is drawn is torch's own."""
    return getattr(_RUNNING, "of", None) is _UNKEYED


@contextmanager
def running(of: Pass | _Unkeyed) -> Iterator[None]:
    """Say what the modules called inside, in this thread, run."""
    before = getattr(_RUNNING, "of", None)
    _RUNNING.of = of
    try:
        yield
    finally:
        _RUNNING.of = before


def unkeyed() -> AbstractContextManager[None]:
    """Say that a model is only looked at: what is drawn inside, in this thread, is torch's own."""
    return running(_UNKEYED)


@contextmanager
def drawing(of: Pass) -> Iterator[None]:
    """Run a pass, its random numbers those of its samples."""
    notices = isinstance(of, Seen) or (of.ctx.training and any(d.hidden for d in of.draws))
    if not notices:
        with running(of):
            yield
        return
    # fused kernels of attention take no masks, and each device has others
    with running(of), _Drawing(of), sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def generators(seed: int) -> Iterator[None]:
    """Inside, the generators of torch on the CPU, numpy and Python start at a seed; after, they are
    as they were before."""
    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002  # users draw from it
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    try:
        with seeded(torch.device("cpu"), seed):
            yield
    finally:
        np.random.set_state(numpys)  # noqa: NPY002
        random.setstate(pythons)


def filled(x: Tensor, fill: Callable[[Tensor, torch.Generator], Any], *, hidden: bool) -> Tensor:
    """A tensor filled with the random numbers of the next place of the pass that is running."""
    running = current()
    dim, seeds = running.next_draw(x.shape, hidden=hidden)
    generator, running.filling = torch.Generator(x.device), True
    for row, seed in zip([x] if dim is None else x.unbind(dim), seeds, strict=True):
        fill(row, generator.manual_seed(seed))
    running.filling = False
    return x


def draws_of(two: Seen, three: Seen) -> tuple[Draw, ...]:
    """Draws of a layer, from its draws with two samples and with three. Raises ValueError where
    these were other draws."""
    if len(two.shapes) != len(three.shapes):
        raise ValueError("how often it draws random numbers follows the size of the batch")
    found = []
    for (small, parted, hidden), (large, *_) in zip(two.shapes, three.shapes, strict=True):
        grown = [dim for dim, pair in enumerate(zip(small, large, strict=True)) if len({*pair}) > 1]
        by_sample = len(grown) == 1 and (small[grown[0]], large[grown[0]]) == (2, 3)
        whole = bool(grown) and not (by_sample and parted)
        found.append(Draw(grown[0] if by_sample and parted else None, whole, hidden))
    return tuple(found)


class _Drawing(TorchDispatchMode):
    """Has whatever torch marks as random draw the numbers of the pass."""

    def __init__(self, of: Pass) -> None:
        super().__init__()
        self._pass = of

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._pass.filling or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise ValueError(
                "it draws from a torch.Generator of its own, whose numbers are others when a pass "
                "is repeated; draw from torch's default generator"
            )
        name = func.overloadpacket.__name__
        by_parts = func.overloadpacket in FILLS or func is _ATEN.native_dropout.default
        tensors = any(isinstance(arg, Tensor) for arg in args[1:])
        by_rows = name in BY_ROWS or (name in IN_PLACE and tensors)
        by_parts |= by_rows or name in IN_PLACE
        if isinstance(self._pass, Seen):
            return self._noted(func, args, kwargs, by_parts)
        if by_rows:
            return self._by_rows(func, args, kwargs)
        if func is _ATEN.native_dropout.default:
            x, p, _ = args
            kept = filled(
                torch.empty_like(x, dtype=torch.bool),
                lambda row, generator: row.bernoulli_(1.0 - p, generator=generator),
                hidden=True,
            )
            return x * kept * (1.0 / (1.0 - p) if p < 1 else 0.0), kept
        if by_parts and name in IN_PLACE:

            def fill(row: Tensor, generator: torch.Generator) -> None:
                getattr(row, name)(*args[1:], **{**kwargs, "generator": generator})

            return filled(args[0], fill, hidden=True)
        if by_parts:
            empty = _ATEN.empty_like if name.endswith("_like") else _ATEN.empty.memory_format
            return filled(empty(*args, **kwargs), FILLS[func.overloadpacket], hidden=True)
        return self._whole(func, args, kwargs)

    def _by_rows(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """An operation whose arguments have rows, or say how many there are, row by row."""
        device = _device_of(args, kwargs)
        with seeded(device, 0):
            out = func(*args, **kwargs)  # of its shape
        dim, seeds = self._pass.next_draw(out.shape, hidden=True)
        for at, seed in enumerate(seeds):

            def own(leaf: Any, at: int = at) -> Any:
                if isinstance(leaf, Tensor):
                    along = dim - out.dim() + leaf.dim()
                    has = along >= 0 and leaf.shape[along] == out.shape[dim]
                    return leaf.narrow(along, at, 1) if has else leaf
                if isinstance(leaf, list | tuple) and [*leaf] == [*out.shape]:
                    return [*leaf[:dim], 1, *leaf[dim + 1 :]]
                return leaf

            given = args if dim is None else tuple(map(own, args))
            with seeded(device, seed):
                row = func(*given, **kwargs)
            place = out if dim is None else out.narrow(dim, at, 1)
            if place.data_ptr() != row.data_ptr():
                place.copy_(row)
        return out

    def _whole(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An operation that draws by rules of its own, from a generator that starts at the seed of
        its place."""
        _, (seed,) = self._pass.next_draw(torch.Size(), hidden=True)
        with seeded(_device_of(args, kwargs), seed):
            return func(*args, **kwargs)

    def _noted(self, func: Any, args: tuple, kwargs: dict[str, Any], by_parts: bool) -> Any:
        out = func(*args, **kwargs)
        first = out[0] if isinstance(out, tuple | list) else out
        self._pass.shapes.append((first.shape, by_parts, True))
        return out


def _device_of(args: tuple, kwargs: dict[str, Any]) -> torch.device:
    tensors = (arg for arg in args if isinstance(arg, Tensor))
    named = kwargs.get("device") or torch.get_default_device()
    return next((tensor.device for tensor in tensors), torch.device(named))
