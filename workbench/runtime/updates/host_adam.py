"""AdamW on the host in one pass: gradient in, master weights and moments updated in place.

The update of offloaded layers is the wall of every offloading method: it moves 26 bytes per
parameter through host memory (``host_adam.cpp`` argues the count), and each further pass over a
slab adds to that. So what would be a pass of its own happens within: a bf16 model's master weight
is stored as the bf16 weight that transfers read and 16 more bits (``split.py``), and an update that
was applied before its gradient scale was known is taken back and applied again at once.

STRONGHOLD (SC'22) hides updates behind the backward pass by running several layers' at once, which
takes calls that share nothing and hold no interpreter lock. Both hold here: the kernel is a plain C
function behind ctypes, and all that a call knows of the training loop is an immutable ``AdamStep``.

Slabs are flat and hold the parameters that decay first, so that weight decay is one split point
and not a list of tensors, and every element is updated whatever the shape of its parameter was.

Where no compiler is found, torch's fused AdamW does the same chunk by chunk.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from workbench.core import native
from workbench.runtime.updates.adam_step import PARTS, AdamStep, Part, check_slabs, plain_update

__all__ = ["AdamStep", "Call", "backend", "build", "load", "update"]

SOURCE = Path(__file__).with_suffix(".cpp")

# Elements the torch path takes at a time, so that a widened gradient (16 MiB) is still in cache
# when it is used.
FALLBACK_CHUNK = 1 << 22

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
POINTERS = ("weights", "rest", "exp_avg", "exp_avg_sq", "grad")
COUNTS = ("numel", "decay_split", "threads")
FLAGS = ("niceness", "grad_bf16", "reverts", "applies", "part")


class Scalars(ctypes.Structure):
    """struct Scalars of host_adam.cpp."""

    _fields_ = tuple((name, ctypes.c_float) for name in SCALARS)


class Call(ctypes.Structure):
    """struct Call of host_adam.cpp: one update, its inverse, or both."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int64) for name in COUNTS),
        *((name, ctypes.c_int32) for name in FLAGS),
        ("hyper", Scalars),
        ("undo", Scalars),
    )

    @classmethod
    def of(
        cls,
        weights: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        grad: Tensor,
        hyper: AdamStep | None,
        *,
        decay_split: int,
        rest: Tensor | None,
        undo: AdamStep | None,
        threads: int,
        niceness: int = 0,
        part: Part = "all",
    ) -> "Call":
        """Take ``undo`` back, then apply ``hyper``; slabs are those of ``update``, checked."""
        return cls(
            weights=weights.data_ptr(),
            rest=None if rest is None else rest.data_ptr(),
            exp_avg=exp_avg.data_ptr(),
            exp_avg_sq=exp_avg_sq.data_ptr(),
            grad=grad.data_ptr(),
            numel=weights.numel(),
            decay_split=decay_split,
            threads=threads,
            niceness=niceness,
            grad_bf16=grad.dtype == torch.bfloat16,
            reverts=undo is not None,
            applies=hyper is not None,
            part=PARTS.index(part),
            hyper=Scalars() if hyper is None else Scalars(**hyper.scalars()),
            undo=Scalars() if undo is None else Scalars(**undo.scalars()),
        )


def update(
    weights: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    hyper: AdamStep | None,
    *,
    decay_split: int,
    rest: Tensor | None = None,
    undo: AdamStep | None = None,
    threads: int = 1,
    niceness: int = 0,
    part: Part = "all",
) -> None:
    """Update master weights and both moments (fp32) in place from ``grad`` (fp32 or bf16).

    The masters are ``weights`` (fp32), or ``weights`` (bf16) and ``rest`` (int16) together, as
    ``split`` makes them. All are contiguous CPU tensors of as many elements; views of larger slabs
    will do. The first ``decay_split`` elements decay, the others do not.

    The result is that of ``torch.optim.AdamW`` in fp32 (moments bitwise; weights bitwise those of
    ``fused=True`` and to 1e-6 those of the other forms), for split masters too, for any ``threads``
    and however a slab is divided into calls. Calls on different slabs may run at the same time.

    The threads started for it yield cores to others by ``niceness`` (on Linux, 0 to 19).

    With ``undo``, which an update of these slabs with the very same gradient was just applied with,
    that update is taken back first, in the same pass; where ``hyper`` is None, no more is done. Old
    values return to within about 2 ulp of the larger of old and new one; ``adam_step`` says how and
    what cannot return.

    ``part`` is for an update in two passes, with nothing in between: ``weights`` leaves the moments
    as they were, and ``moments`` then leaves the weights. Both together give the bits of one pass.

    Where there is no compiler, torch's fused path is taken and ignores ``threads``. Raises
    ValueError for tensors an update cannot take, and for an ``undo`` that emptied the weights.
    """
    slabs = (weights, exp_avg, exp_avg_sq, grad)
    check_slabs(*slabs, rest, decay_split, torch.device("cpu"), undo)
    if threads < 1:
        raise ValueError(f"threads is {threads}; at least 1 is needed")
    if part != "all" and undo is not None:
        raise ValueError(f"part is {part!r}; an update is taken back in one pass: 'all' is needed")
    where = {"decay_split": decay_split, "rest": rest, "undo": undo, "part": part}
    if (kernel := _kernel()) is not None:
        kernel(Call.of(*slabs, hyper, **where, threads=threads, niceness=niceness))
        return
    with torch.no_grad():
        plain_update(*slabs, hyper, **where, chunk=FALLBACK_CHUNK, fused=True)


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


def load(flags: tuple[str, ...] = ()) -> Callable[[Call], None]:
    """The compiled kernel, with more compiler flags than usual; raises ``native.CannotBuild``."""
    function = native.load(SOURCE, flags=flags).workbench_adamw
    function.argtypes = (ctypes.POINTER(Call),)
    function.restype = None
    return function


@functools.cache
def _kernel() -> Callable[[Call], None] | None:
    try:
        return load()
    except native.CannotBuild:
        return None
