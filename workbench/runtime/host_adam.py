"""AdamW on the host in one pass: gradient in, fp32 states updated, working copy out.

The update of offloaded layers is the wall of every offloading method: it moves 28 bytes per
parameter through host memory (``host_adam.cpp`` argues the count), and each further pass over a
slab adds to that. STRONGHOLD (SC'22) hides it behind the backward pass by updating
several layers at once, which takes calls that share nothing and hold no interpreter lock. Both
hold here: the kernel is a plain C function behind ctypes, and all that a call knows of the
training loop is an immutable ``AdamStep``.

Slabs are flat and hold the parameters that decay first, so that weight decay is one split point
and not a list of tensors, and every element is updated whatever the shape of its parameter was.

Where no compiler is found, torch's fused AdamW does the same between a widening and a narrowing
copy.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from workbench.runtime import native
from workbench.runtime.adam_step import AdamStep, check_slabs, fused_update

__all__ = ["AdamStep", "backend", "build", "update"]

SOURCE = Path(__file__).with_suffix(".cpp")

# Elements the torch path takes at a time, so that a widened gradient (16 MiB) is still in cache
# when it is used.
FALLBACK_CHUNK = 1 << 22

POINTERS = ("param", "exp_avg", "exp_avg_sq", "grad", "working")
COUNTS = ("numel", "decay_split", "threads")
FLAGS = ("grad_bf16", "working_bf16")
SCALARS = (
    "grad_scale",
    "decay",
    "lerp_weight",
    "beta2",
    "one_minus_beta2",
    "sqrt_correction2",
    "eps",
    "neg_step_size",
)


class Update(ctypes.Structure):
    """struct Update of host_adam.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int64) for name in COUNTS),
        *((name, ctypes.c_int32) for name in FLAGS),
        *((name, ctypes.c_float) for name in SCALARS),
    )


def update(
    param: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep,
    *,
    decay_split: int,
    working: Tensor | None = None,
    threads: int = 1,
) -> None:
    """Update ``param``, ``exp_avg``, ``exp_avg_sq`` (fp32) in place from ``grad`` (fp32, bf16).

    All are contiguous CPU tensors of as many elements; views of larger slabs will do. The first
    ``decay_split`` elements decay, the others do not. The new weights are also written to
    ``working`` (fp32, or bf16 rounded to nearest even).

    The result is that of ``torch.optim.AdamW`` in fp32 (moments bitwise; weights bitwise those of
    ``fused=True`` and to 1e-6 those of the other forms), for any ``threads`` and however a slab is
    divided into calls. Calls on different slabs may run at the same time. Where there is no
    compiler, torch's fused path is taken and ignores ``threads``.

    Raises ValueError for tensors an update cannot take.
    """
    check_slabs(param, exp_avg, exp_avg_sq, grad, working, decay_split, torch.device("cpu"))
    if threads < 1:
        raise ValueError(f"threads is {threads}; at least 1 is needed")
    kernel = _kernel()
    if kernel is None:
        with torch.no_grad():
            fused_update(
                param, exp_avg, exp_avg_sq, grad, hyper, decay_split, working, FALLBACK_CHUNK
            )
        return
    # In double here, rounded once on the way into the structure: what torch does with Python
    # scalars.
    correction1 = 1 - hyper.beta1**hyper.step
    correction2 = 1 - hyper.beta2**hyper.step
    kernel(
        Update(
            param=param.data_ptr(),
            exp_avg=exp_avg.data_ptr(),
            exp_avg_sq=exp_avg_sq.data_ptr(),
            grad=grad.data_ptr(),
            working=None if working is None else working.data_ptr(),
            numel=param.numel(),
            decay_split=decay_split,
            threads=threads,
            grad_bf16=grad.dtype == torch.bfloat16,
            working_bf16=working is not None and working.dtype == torch.bfloat16,
            grad_scale=hyper.grad_scale,
            decay=1 - hyper.lr * hyper.weight_decay,
            lerp_weight=1 - hyper.beta1,
            beta2=hyper.beta2,
            one_minus_beta2=1 - hyper.beta2,
            sqrt_correction2=correction2**0.5,
            eps=hyper.eps,
            neg_step_size=-(hyper.lr / correction1),
        )
    )


def backend() -> Literal["compiled", "torch"]:
    """The path ``update`` takes on this machine; compiles the kernel if no earlier process did."""
    return "torch" if _kernel() is None else "compiled"


def build(echo: Callable[[str], None]) -> Literal["compiled", "torch"]:
    """Compile the kernel now, telling ``echo`` line by line, and return what ``backend`` will."""
    try:
        native.load(SOURCE, echo)
    except native.CannotBuild as error:
        echo(f"the host optimizer falls back to torch's fused AdamW: {error}")
    return backend()


@functools.cache
def _kernel() -> Callable[[Update], None] | None:
    try:
        library = native.load(SOURCE)
    except native.CannotBuild:
        return None
    function = library.workbench_adamw
    function.argtypes = (ctypes.POINTER(Update),)
    function.restype = None
    return function
