"""The module of a Hugging Face configuration, and the kernel of attention in it.

Which kernel computes is Transformers' own switch (``attn_implementation``): its layers and its
masks look there at every call. So a kernel that trains on a GPU only is left out where units are
tried on a processor (`anywhere`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.core.model_spec import EAGER, FLASH, GPU_KERNELS
from workbench.model.dropout import seeded
from workbench.model.hf_config import transformers_package, understood


class Unfilled(TorchDispatchMode):
    """Within, memory that is asked for without values is on the meta device: weights take none, and
    what a constructor computes (rotary tables, ones) is there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten.empty.memory_format:
            kwargs["device"] = torch.device("meta")
        return func(*args, **kwargs)


def causal_lm(config: Any, attention: str | None = None) -> nn.Module:
    """The `*ForCausalLM` of a configuration, its parameters without values, with this kernel of
    attention, by default Transformers' choice. Raises ValueError where no such module is made, and
    for a kernel that is not installed or that the module does not take."""
    transformers = transformers_package()
    if attention == FLASH and not transformers.utils.is_flash_attn_2_available():
        raise ValueError(  # before Transformers looks for one to download
            f"attention is {attention!r}; its package flash_attn is not installed, or finds no "
            "GPU: install it, or leave attention out"
        )
    told = _taken(attention) if attention else understood(config.model_type)
    chosen = {"attn_implementation": attention} if attention else {}
    with told, seeded(torch.device("cpu"), 0), Unfilled():
        source = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False, **chosen
        )
    if attention not in (None, found := source.config._attn_implementation):
        raise ValueError(
            f"attention is {attention!r}, in whose place {type(source).__name__} takes {found!r}; "
            "leave attention out"
        )
    return source


@contextmanager
def anywhere(config: Any) -> Iterator[None]:
    """Within, modules of a configuration with a kernel of GPUs compute by one of all devices."""
    kernel = config._attn_implementation
    if kernel in GPU_KERNELS:
        config._attn_implementation = EAGER
    try:
        yield
    finally:
        config._attn_implementation = kernel


@contextmanager
def _taken(attention: str) -> Iterator[None]:
    """Raise a ValueError, one sentence, for whatever Transformers raises of the kernel."""
    try:
        yield
    except Exception as error:
        reason = str(error).split("\n")[0].split(". ")[0].rstrip(".")
        raise ValueError(f"attention is {attention!r}: {reason}; leave attention out") from None
