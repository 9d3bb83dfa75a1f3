"""Blocks of a whole model as one compiled graph, checkpointing inside it: torch at its best.

All blocks of a model run one graph, which takes a block's weights as inputs. With recomputation the
checkpoint is inside the graph, so what is recomputed is what the backward pass needs and no more:
the feed-forward's second product is not computed again. (A checkpoint around a compiled block would
compute it, at a twelfth of the step.) Libraries that act when a block is called (FSDP) act outside
the graph, since only `forward` is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from workbench.core.spec import RunSpec
from workbench.model.whole import Whole
from workbench.runtime.memory.storage import DTYPES

Forward = Callable[[nn.Module, Tensor], Tensor]


def compile_blocks(whole: Whole, spec: RunSpec, device: torch.device) -> str:
    """Compile the blocks where the spec wants it and torch can; returns how they run, in words.

    Where `compile` is ``auto`` and torch fails, blocks stay eager and the words say why. Raises
    ValueError where it is ``on`` and cannot be.
    """
    why = why_eager(spec, device)
    if why is None:
        run = torch.compile(body_of(whole), fullgraph=True, dynamic=False)
        why = _failure(run, whole, spec, device)
    if why is not None:
        if spec.compile == "on":
            raise ValueError(f"compile is on, but {why}; use auto, or off")
        return f"eager blocks ({why})"
    install(whole, run)
    return "compiled blocks"


def body_of(whole: Whole) -> Forward:
    """The function to compile: a block's forward pass, with its checkpoint if it has one."""
    return _recomputed if whole.checkpoint else _kept


def install(whole: Whole, run: Forward) -> None:
    """Make `run` the forward pass of every block, checkpointing included if there is any."""
    for block in whole.blocks:
        block.forward = partial(_unobserved, run, block)
    whole.checkpoint = False


def why_eager(spec: RunSpec, device: torch.device) -> str | None:
    """Why the model's blocks are not to be compiled; None where torch is to try."""
    if device.type != "cuda":
        return f"the device is {device.type}, whose memory could not be counted"
    if not spec.model.pure:
        return "a block is not a function of its weights and input alone"
    if spec.compile == "off":
        return "compile is off"
    if spec.compile == "auto" and spec.dtype == "fp32":
        return "fp32 runs exist to be compared exactly"
    return None


def _failure(run: Forward, whole: Whole, spec: RunSpec, device: torch.device) -> str | None:
    """Compile a block of its own for trial; returns torch's objection, or None if it runs."""
    dtype, model = DTYPES[spec.dtype], whole.layered
    block = model.build(1, seed=spec.seed, device=device, dtype=dtype)
    shape = (spec.microbatch, spec.model.seq, model.hidden)
    x = torch.zeros(shape, device=device, dtype=dtype, requires_grad=True)
    try:
        run(block, x).sum().backward()
    except TorchDynamoException as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return f"torch could not compile one: {type(error).__name__}: {first[:200]}"
    return None


def _unobserved(run: Forward, block: nn.Module, x: Tensor) -> Tensor:
    """Without the dispatch modes that count copies in one step: torch compiles under none, and
    blocks copy nothing."""
    with _disable_current_modes():
        return run(block, x)


def _kept(block: nn.Module, x: Tensor) -> Tensor:
    return type(block).forward(block, x)


def _recomputed(block: nn.Module, x: Tensor) -> Tensor:
    def forward(x: Tensor) -> Tensor:
        return type(block).forward(block, x)

    return checkpoint(forward, x, use_reentrant=False, preserve_rng_state=False)
