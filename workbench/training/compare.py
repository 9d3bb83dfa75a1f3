"""The layers of a module against the module as its author wrote it, before a run trains either.

The module runs on the first samples of the run, and so do its layers, the way that runtimes run
them: forward without gradients, then each layer once more for its backward pass, on tensors that
are cut from the graph. Loss, every gradient and BatchNorm's statistics are compared, twice. Then
the module runs as the first time again, which shows whether a pass leaves something behind that the
next one reads. All of it is in fp32 and on copies, so that nobody has called the run's own module
before the run does. How much of a large model is compared, and where, bounded.py decides.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import sqrt
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from workbench.model.base import Context, LayeredModel, Part
from workbench.model.state_left import left_in, refuse_changes
from workbench.model.whole import Whole, make_whole
from workbench.runtime.memory.tiers import OutOfMemory
from workbench.runtime.passes.statistics import undivided

SAMPLES = 4
"""Compared at most."""
COPIES = 6
"""Copies of all weights in memory meanwhile: those of the module and of its layers, two of
gradients, and their sums."""
PASSES, FIRST = 24, 3
"""Forward passes that a comparison is worth, and those of them that its first part is."""
ROOM = 1 << 30
"""Bytes of a GPU that are left to passes; where these need more, the next place is tried."""
CLOSE, ROUNDING = 1e-6, 2.0**-23
"""Relative to the tensor's norm: a gradient of several layers may be added up in another order. On
a GPU one that is a sum over positions, as a divided head's, also differs by a rounding times the
root of their number: on an H200 by 3e-6 for 4,096 positions and 64,000 words, on a CPU by 7e-7."""
APART = 1e-3
"""Relative difference of a batch's gradients and those of its halves from which on samples are said
to depend on each other; sums over fewer samples round otherwise."""

LOSS, STATISTIC = "the loss", "statistic "
"""Names in `Seen` that no parameter has."""
Rows = Sequence[Tensor]
"""Inputs, the targets last."""
Seen = dict[str, Tensor]
"""The loss, gradients and statistics after a pass, by their names."""
Run = Callable[[Context], Seen]
"""A pass."""
Far = Callable[[Tensor, Tensor], float]
"""The relative difference of two tensors that differ; 0 for two that do not."""


class Differs(ValueError):
    """Layers would not train as the module does; the message says where, and the likely reason."""


class NoNumber(ArithmeticError):
    """The loss of the samples is no number, and tells nothing."""


def compare(
    model: LayeredModel,
    again: LayeredModel,
    rows: Rows,
    seed: int,
    *,
    device: str = "cpu",
    seconds: float | None = None,
    there: bool = False,
) -> list[str]:
    """Notes for people; `again` is the model made once more from the seed, `there` as of `build`.

    Raises Differs, one sentence, where the layers would not train as the module does, with the
    first tensor that differs and the likely reason; ValueError where the module fails by itself;
    NoNumber for a loss that is none; TimeoutError where the first pass shows that it would take
    more than `seconds`; OutOfMemory, or torch's error of it, where a GPU has no room."""
    samples = tuple(range(len(rows[-1])))
    first, second = (Context(seed=seed, step=step, unit=0, samples=samples) for step in range(2))
    with _exactly(device):
        written = make_whole(model, seed=seed, device=device, undivided=True, there=there)
        layers = make_whole(again, seed=seed, device=device, there=there)
        if written.written is None:
            return []
        _same(
            _state(written),
            _state(layers),
            "made twice from one seed, the module holds other numbers: {name!r} differs; draw them "
            "from the generators of torch, numpy or Python",
        )
        rows = [row.to(device) for row in rows]
        wanted = agree(
            partial(_by_author, written, rows), partial(_by_layers, layers, rows), (first, second),
            "layers", module=getattr(written.written, "module", None), seconds=seconds,
            far=partial(_far, close=_bound(rows, device)),
        )  # fmt: skip
        if len(samples) > 1 and not model.couples and _depends(layers, rows, first, wanted[0]):
            return [
                "samples depend on the others of their micro-batch: a batch that is divided "
                "otherwise is another training"
            ]
    return []


def room_on(gpu: torch.device, budget: int | None) -> int:
    """Bytes of a GPU that copies of weights may take, of those that a run may have."""
    left = (budget or sys.maxsize) - torch.cuda.memory_allocated(gpu)
    return min(torch.cuda.mem_get_info(gpu)[0], left) - ROOM


@contextmanager
def _exactly(device: str) -> Iterator[None]:
    """Within, a GPU computes passes of equal numbers alike, in fp32 throughout."""
    if device == "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(), torch.backends.cudnn.flags(allow_tf32=False):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def _apart(one: Tensor, other: Tensor) -> float:
    """The norm of the difference over the norm; infinite where one is not a number."""
    if torch.equal(one, other):
        return 0.0
    difference = (one.detach().double() - other.detach().double()).norm()
    norm = float(other.detach().double().norm())
    found = float(difference) / norm if norm else float("inf")
    return found if found == found else float("inf")


def _far(one: Tensor, other: Tensor, close: float = CLOSE) -> float:
    return relative if (relative := _apart(one, other)) > close else 0.0


def _bound(rows: Rows, device: str) -> float:
    """Relative difference that sums over the positions of texts, or samples, may have."""
    texts = (row.numel() for row in rows if row.dim() > 1 and not row.is_floating_point())
    positions = max(texts, default=len(rows[-1]))
    return CLOSE if device == "cpu" else max(CLOSE, ROUNDING * sqrt(positions))


def _same(found: Seen, expected: Seen, sentence: str, far: Far = _far) -> None:
    """Raise ValueError with the sentence for the first tensor that differs."""
    for name, value in expected.items():
        if name in found and (relative := far(found[name], value)):
            told = name.removeprefix(STATISTIC)
            raise Differs(sentence.format(name=told, relative=relative))


def agree(
    author: Run, cut: Run, contexts: Sequence[Context], parts: str, *,
    again: Run | None = None, module: nn.Module | None = None, far: Far = _far,
    seconds: float | None = None,
) -> list[Seen]:  # fmt: skip
    """Losses, gradients and statistics of a module's own passes (`author`), one in each context.
    Raises Differs where passes of its `cut` parts give others, or where a pass leaves something
    behind for the next; ValueError where the module fails; NoNumber for a loss that is none;
    TimeoutError where it would take more than `seconds`. `again` is the author's pass once more, by
    default of all; it may give fewer. Attributes of a `module` must stay as they are."""
    states, seen, kept = _generators(), [], []
    for run, ctx in (*((author, ctx) for ctx in contexts), (again or author, contexts[0])):
        began = perf_counter()
        try:
            seen.append(run(ctx))
        except (ValueError, OutOfMemory, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever the author's code raises
            raise ValueError(
                f"the module fails by itself: {type(error).__name__}: {error}".split("\n")[0]
            ) from error
        if not bool(torch.isfinite(seen[-1].get(LOSS, torch.zeros(())))):
            raise NoNumber(f"the loss of the first samples is {float(seen[-1][LOSS])}")
        took = perf_counter() - began
        if seconds is not None and took * PASSES / FIRST > seconds and len(seen) == 1:
            raise TimeoutError(f"a pass takes {took:.1f} s")
        kept.append(left_in(module))
    try:
        refuse_changes(kept)
    except ValueError as error:
        raise Differs(str(error)) from None
    if _generators() != states:
        raise Differs(
            "the module draws from numpy's or Python's generator in forward passes, which are "
            "repeated here and would draw other numbers; draw from torch's"
        )
    *wanted, repeated = seen
    _same(
        {name: value for name, value in repeated.items() if not name.startswith(STATISTIC)},
        wanted[0],
        "a forward pass of the module leaves something behind that the next one reads: {name!r} is "
        "another after the same samples ({relative:.0e} relative)",
        far,
    )
    otherwise = (
        f"cut into {parts} the module would train otherwise than by itself: {{name!r}} differs "
        "({relative:.0e} relative); its code reads something that is neither handed from module to "
        "module nor a parameter or buffer, or hooks gradients between its blocks"
    )
    for ctx, expected in zip(contexts, wanted, strict=True):
        _same(cut(ctx), expected, otherwise, far)
    return wanted


def _by_author(whole: Whole, rows: Rows, ctx: Context) -> Seen:
    """One pass of the module itself."""
    *inputs, targets = (row.clone() for row in rows)
    loss = whole.written(inputs[0] if len(inputs) == 1 else tuple(inputs), targets, ctx)
    loss.backward()
    return _seen(whole, loss)


def _by_layers(whole: Whole, rows: Rows, ctx: Context, share: float = 1.0) -> Seen:
    """One pass of the layers, as runtimes run them; `share`: of the whole batch's loss."""
    model, head = whole.layered, whole.layered.head
    *inputs, targets = (row.clone() for row in rows)
    parts = [model.boundary(unit, model.max_seq) for unit in range(model.num_units)]
    with torch.no_grad():
        _forward(whole, tuple(t.clone() for t in inputs), None, ctx, parts)
    graphs = _forward(whole, tuple(inputs), targets, ctx, parts)
    loss = graphs[head][1][0] * share
    loss.backward()
    for (_, y), (above, _) in reversed([*pairwise(graphs)]):
        pairs = [(t, x.grad) for t, x in zip(y, above, strict=True) if t.requires_grad]
        pairs = [(t, grad) for t, grad in pairs if grad is not None]
        if pairs:
            torch.autograd.backward(*zip(*pairs, strict=True))
    return _seen(whole, loss)


def _seen(whole: Whole, loss: Tensor) -> Seen:
    """What a pass has left, which has no gradients any more."""
    seen = {LOSS: loss.detach()} | {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in whole.named_parameters()
    }
    whole.zero_grad()
    found = undivided(whole.layered, whole.units)
    return seen | {f"{STATISTIC}{name}": value.clone() for name, value in found.items()}


def _forward(
    whole: Whole,
    x: tuple[Tensor, ...],
    targets: Tensor | None,
    ctx: Context,
    parts: Sequence[Sequence[Part]],
) -> list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Inputs and outputs of each unit, cut from the unit before; without targets the head is left
    out."""
    graphs = []
    for unit, module in enumerate(whole.units):
        if unit == whole.layered.head and targets is None:
            break
        if unit:
            x = tuple(
                t.detach().clone().requires_grad_(part.differentiable)
                for t, part in zip(x, parts[unit], strict=True)
            )
        given = x if len(x) > 1 else x[0]
        last = (targets,) if unit == whole.layered.head else ()
        y = whole.layered.forward(unit, module, given, replace(ctx, unit=unit), *last)
        graphs.append((x, y if isinstance(y, tuple) else (y,)))
        x = graphs[-1][1]
    return graphs


def _state(whole: Whole) -> Seen:
    """Parameters, and what units have as buffers."""
    buffers = {
        f"{name} of layer {unit}": buffer.clone()
        for unit, module in enumerate(whole.units)
        for name, buffer in module.named_buffers()
    }
    return buffers | dict(whole.named_parameters())


def _depends(layers: Whole, rows: Rows, ctx: Context, expected: Seen) -> bool:
    """Whether the halves of a batch teach otherwise than the whole of it, by more than roundings
    of a gradient that is next to nothing."""
    count, counts = len(ctx.samples), layers.layered.counted(rows[-1])
    sums: Seen = {}
    for start, end in ((0, count // 2), (count // 2, count)):
        part = replace(ctx, samples=ctx.samples[start:end])
        share = sum(counts[start:end]) / max(1, sum(counts))
        if not share:  # the mean of nothing is no number
            continue
        seen = _by_layers(layers, [row[start:end] for row in rows], part, share)
        for name, value in seen.items():
            sums[name] = sums[name] + value if name in sums else value
    found = [(n, value) for n, value in expected.items() if not n.startswith(STATISTIC)]
    least = CLOSE * max(float(value.norm()) for name, value in found if name != LOSS)
    return any(
        _apart(sums[name], value) > APART and not float((sums[name] - value).norm()) <= least
        for name, value in found
    )


def _generators() -> object:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002  # users draw from it
    return random.getstate(), name, keys.tolist(), rest
