"""One compiled layer template: how a unit's forward pass is called, by the engine and the bench.

Blocks of one kind differ in their weights only, so one compiled graph runs them all, whichever slab
their parameters are views of. Tensors that they are called with beside their input, as rotary
tables, are made once for each shape, and stay: a recording knows their addresses. Where they follow
positions that flow beside the input, as masks of documents do, the block takes the positions, of
one shape in all batches, and makes them itself; samples that are `uniform` (model/base.py) have a
graph of their own, without masks.

A compiled block launches about half as many kernels as an eager one, keeps less for its backward
pass, and rounds elsewhere: fp32 runs, which exist to be compared exactly, stay eager, and so do
blocks that torch cannot compile. torch times variants of each kernel where it has none in its
cache, and they round differently, too: who wants the same bits of another machine turns compiling
off.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workbench.model.base import Call, Context, LayeredModel
from workbench.model.checkpointed import stops_early
from workbench.model.modules import Decomposed
from workbench.runtime.passes.bundle import Bundle, bundled, single
from workbench.runtime.passes.compiled import Programs, allow_graphs

Given = Call | Callable[[Tensor], Call]
"""Arguments of a block beside its input; a function of what flows there."""
Block = Callable[..., Tensor]


def compiles(choice: str, device_type: str, dtype: torch.dtype) -> bool:
    """Whether blocks are compiled: as asked, else on CUDA in reduced precision. Raises ValueError
    where they are wanted without a GPU, whose memory could not be counted."""
    if choice == "on" and device_type != "cuda":
        raise ValueError(f"compile is on, and the device is {device_type}; it must be cuda, or off")
    if choice == "auto":
        return device_type == "cuda" and dtype != torch.float32
    return choice == "on"


class Template:
    """Runs units of a model, blocks through a compiled graph where `compiled` and possible; of a
    user's module, layers that are like others."""

    def __init__(self, model: LayeredModel, *, compiled: bool) -> None:
        self._model = model
        self._given: dict[tuple[str, torch.Size, bool], Given] = {}
        self._block: Block | None = None
        self._checkpointed: Block | None = None
        self._programs: Programs | None = None
        if compiled and isinstance(model, Decomposed) and model.foreign:
            self._programs = Programs(model, model.repeated)
        if compiled and model.compilable:
            allow_graphs()
            # Shapes are few in a run, and a graph for general ones would be slower.
            self._block = torch.compile(_call, dynamic=False)
            self._checkpointed = torch.compile(_checkpointed, dynamic=False)

    def forward(
        self, unit: int, module: nn.Module, x: Tensor | Bundle, ctx: Context, targets: Tensor | None
    ) -> Tensor | Bundle:
        """`LayeredModel.forward`."""
        if self._block is not None and 0 < unit < self._model.head:
            return self._through(self.block, unit, module, x, ctx)
        if self._programs is not None:
            module = self._programs.of(unit, module)
        return self._model.forward(unit, module, x, ctx, targets)

    def checkpointed(
        self, unit: int, module: nn.Module, x: Tensor | Bundle, ctx: Context
    ) -> Tensor | Bundle:
        """A block's forward pass that keeps its input alone: its backward pass computes again what
        it needs and no more, which the last matrix product is not. In a compiled block the
        checkpoint is part of the graph."""
        if self._block is not None:
            return self._through(self.checkpointed_block, unit, module, x, ctx)

        def run(x: Tensor | Bundle) -> Tensor | Bundle:
            return self.forward(unit, module, x, ctx, None)

        return checkpoint(
            run, x, use_reentrant=False, preserve_rng_state=False,
            early_stop=stops_early(self._model),
        )  # fmt: skip

    def _through(
        self, block: Block, unit: int, module: nn.Module, x: Tensor | Bundle, ctx: Context
    ) -> Tensor | Bundle:
        first, *beside = bundled(x)
        made = block(self._model.kind(unit), module, first, *([] if ctx.uniform else beside))
        return single((made, *beside))

    def block(self, kind: str, module: nn.Module, x: Tensor, *beside: Tensor) -> Tensor:
        """A block of a kind, of a compilable model, for uniform samples or with what flows `beside`
        the hidden states."""
        given = self._of(kind, x, *beside)
        return self._run(self._block, _call, module, given, x, *beside)

    def layer(self, kind: str, module: nn.Module, *x: Tensor) -> Bundle:
        """A layer of a user's module, of a kind that draws no random numbers and has no BatchNorm:
        a function of what flows into it and its weights."""
        unit = next(u for u in range(1, self._model.head) if self._model.kind(u) == kind)
        ctx = Context(seed=0, step=0, unit=unit, samples=())
        return bundled(self.forward(unit, module, single(x), ctx, None))

    def checkpointed_block(
        self, kind: str, module: nn.Module, x: Tensor, *beside: Tensor
    ) -> Tensor:
        """Likewise, with a backward pass that begins at its input."""
        # Attention notes the state of random numbers elsewhere where it is recorded.
        eager = partial(_checkpointed, determinism_check="none")
        given = self._of(kind, x, *beside)
        return self._run(self._checkpointed, eager, module, given, x, *beside)

    def _run(self, compiled: Block | None, eager: Block, *block: Any) -> Tensor:
        if compiled is not None:
            try:
                return compiled(*block)
            except torch._dynamo.exc.TorchDynamoException as error:
                why = next(iter(str(error).splitlines()), type(error).__name__)
                warnings.warn(
                    f"blocks run uncompiled: torch cannot compile one: {why}", stacklevel=2
                )
                self._block = self._checkpointed = None
        return eager(*block)

    def _of(self, kind: str, x: Tensor, *beside: Tensor) -> Given:
        form = kind, x.shape, bool(beside)
        if form not in self._given:
            make = self._model.following if beside else self._model.beside
            self._given[form] = make(kind, x)
        return self._given[form]


def _call(module: nn.Module, given: Given, x: Tensor, *beside: Tensor) -> Tensor:
    args, kwargs = given(*beside) if beside else given
    made = module(x, *args, **kwargs)
    return made[0] if isinstance(made, tuple) else made


def _checkpointed(
    module: nn.Module, given: Given, x: Tensor, *beside: Tensor, **how: str
) -> Tensor:
    return checkpoint(
        _call, module, given, x, *beside, use_reentrant=False, preserve_rng_state=False, **how
    )
