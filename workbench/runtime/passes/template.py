"""One compiled layer template: how a unit's forward pass is called, by the engine and the bench.

Blocks of one kind differ in their weights only, so one compiled graph runs them all, whichever slab
their parameters are views of. Tensors that they are called with beside their input, as rotary
tables, are made once for each shape, and stay: a recording knows their addresses. A compiled block
launches about half as many kernels as an eager one, keeps less for its backward pass, and rounds
elsewhere: fp32 runs, which exist to be compared exactly, stay eager, and so do blocks that torch
cannot compile. torch times variants of each kernel where it has none in its cache, and they round
differently, too: who wants the same bits of another machine turns compiling off.
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
from workbench.runtime.passes.compiled import Programs, allow_graphs

Block = Callable[[nn.Module, Tensor, Call], Tensor]


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
        self._beside: dict[tuple[str, torch.Size], Call] = {}
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
        self, unit: int, module: nn.Module, x: Tensor, ctx: Context, targets: Tensor | None
    ) -> Tensor:
        """`LayeredModel.forward`."""
        if self._block is not None and 0 < unit < self._model.head:
            return self.block(self._model.kind(unit), module, x)
        if self._programs is not None:
            module = self._programs.of(unit, module)
        return self._model.forward(unit, module, x, ctx, targets)

    def checkpointed(self, unit: int, module: nn.Module, x: Tensor, ctx: Context) -> Tensor:
        """A block's forward pass that keeps its input alone: its backward pass computes again what
        it needs and no more, which the last matrix product is not. In a compiled block the
        checkpoint is part of the graph."""
        if self._block is not None:
            return self.checkpointed_block(self._model.kind(unit), module, x)

        def run(x: Tensor) -> Tensor:
            return self.forward(unit, module, x, ctx, None)

        return checkpoint(
            run, x, use_reentrant=False, preserve_rng_state=False,
            early_stop=stops_early(self._model),
        )  # fmt: skip

    def block(self, kind: str, module: nn.Module, x: Tensor) -> Tensor:
        """A block of a kind, of a compilable model."""
        return self._run(self._block, _call, module, x, self._given(kind, x))

    def checkpointed_block(self, kind: str, module: nn.Module, x: Tensor) -> Tensor:
        """Likewise, with a backward pass that begins at its input."""
        # Attention notes the state of random numbers elsewhere where it is recorded.
        eager = partial(_checkpointed, determinism_check="none")
        return self._run(self._checkpointed, eager, module, x, self._given(kind, x))

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

    def _given(self, kind: str, x: Tensor) -> Call:
        """Arguments of a block beside its input."""
        form = kind, x.shape
        if form not in self._beside:
            self._beside[form] = self._model.beside(kind, x)
        return self._beside[form]


def _call(module: nn.Module, x: Tensor, beside: Call) -> Tensor:
    args, kwargs = beside
    made = module(x, *args, **kwargs)
    return made[0] if isinstance(made, tuple) else made


def _checkpointed(module: nn.Module, x: Tensor, beside: Call, **how: str) -> Tensor:
    return checkpoint(
        _call, module, x, beside, use_reentrant=False, preserve_rng_state=False, **how
    )
