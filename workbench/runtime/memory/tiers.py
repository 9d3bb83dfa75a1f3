"""Memory tiers with byte budgets, and the flat slabs that live in them.

STRONGHOLD trains what does not fit, so how much fits is a result to be measured and not an
accident: every large allocation of the runtime is entered in its tier first, and a
tier that is full raises ``OutOfMemory``, in the same way on a server and on a laptop that pretends
to be one.

Slabs are whole memory maps rather than allocations of torch. They start on a page (direct disk I/O
wants that), ask for huge pages, and on CUDA are pinned by registering exactly their bytes, which
several threads have touched before (pages.py): torch's own pinned allocator rounds every request up
to a power of two and keeps it after it is freed (8 % waste for a layer of hidden size 2048, up to
100 % for others).
"""

import contextlib
import mmap
import threading
from typing import Literal, Self

import torch
from torch import Tensor

from workbench.core.bytesize import format_bytes
from workbench.core.host import available_cores
from workbench.runtime.memory.pages import bring

TierName = Literal["device", "host", "disk"]


class OutOfMemory(RuntimeError):
    """A tier has no room for what was asked; the message is one sentence for people."""

    def __init__(
        self,
        *,
        tier: TierName,
        what: str,
        asked: int,
        in_use: int,
        budget: int | None,
        why: str = "",
    ) -> None:
        self.tier = tier
        self.what = what
        """Name of the memory that was asked for."""
        self.asked = asked
        """Bytes that were wanted."""
        self.in_use = in_use
        """Bytes taken at that moment, without those asked for."""
        self.why = why
        """The system's message, if there was one."""
        self.budget = budget
        """Bytes the tier may hold; None where the machine itself, and no budget, was the limit."""
        of = "" if budget is None else f" of {format_bytes(budget)}"
        because = f" ({why})" if why else ""
        super().__init__(
            f"the {tier} tier is out of memory: {what} needs {format_bytes(asked)}, "
            f"and {format_bytes(in_use)}{of} are in use{because}"
        )


class Tier:
    """Holders of the bytes of one tier, never more than ``budget`` in all. Thread-safe."""

    def __init__(self, name: TierName, budget: int | None = None) -> None:
        if budget is not None and budget < 0:
            raise ValueError(
                f"the budget of the {name} tier is {budget} bytes; it must not be negative"
            )
        self.name = name
        self.budget = budget
        self._held: dict[str, int] = {}
        self._in_use = 0
        self._peak = 0
        # Reentrant: a slab may be collected, and so released, while this very thread is inside.
        self._lock = threading.RLock()

    def reserve(self, label: str, nbytes: int) -> None:
        """Enter ``nbytes`` under a new ``label``; OutOfMemory and no change if they do not fit."""
        if nbytes < 0:
            raise ValueError(f"{label} asks for {nbytes} bytes; it must not be negative")
        with self._lock:
            if label in self._held:
                raise ValueError(
                    f"{label} already holds {self._held[label]} bytes of the {self.name} tier"
                )
            if self.budget is not None and self._in_use + nbytes > self.budget:
                raise OutOfMemory(
                    tier=self.name,
                    what=label,
                    asked=nbytes,
                    in_use=self._in_use,
                    budget=self.budget,
                )
            self._held[label] = nbytes
            self._in_use += nbytes
            self._peak = max(self._peak, self._in_use)

    def release(self, label: str) -> int:
        """Strike ``label`` out and return the bytes it held; ValueError if it holds none."""
        with self._lock:
            if label not in self._held:
                raise ValueError(f"{label} holds nothing in the {self.name} tier")
            nbytes = self._held.pop(label)
            self._in_use -= nbytes
            return nbytes

    @property
    def in_use(self) -> int:
        """Bytes that are reserved now."""
        return self._in_use

    @property
    def peak(self) -> int:
        """The most bytes in use at once since the start or the last ``reset_peak``."""
        return self._peak

    def reset_peak(self) -> None:
        """Begin the peak again at the bytes in use."""
        with self._lock:
            self._peak = self._in_use

    def held(self) -> dict[str, int]:
        """Bytes by label, in the order they were reserved."""
        with self._lock:
            return dict(self._held)


class Slab:
    """One flat allocation: ``tensor`` while it lives; ``free()``, or leaving the context, ends it.

    Without ``free`` the bytes go back when the last view of them is garbage. The caller of
    ``free`` answers for no copy being in flight, and for views that are still around being used no
    more.
    """

    def __init__(self, pages: "_Pages", tensor: Tensor, *, pinned: bool) -> None:
        self._pages: _Pages | None = pages
        self._tensor: Tensor | None = tensor
        self.nbytes = tensor.nbytes
        self.pinned = pinned

    @property
    def tensor(self) -> Tensor:
        """The bytes, a flat tensor of the slab's dtype. Raises ValueError once they are freed."""
        if self._tensor is None:
            raise ValueError(f"this slab of {self.nbytes} bytes was freed")
        return self._tensor

    def free(self) -> None:
        """Unpin the bytes and take them out of the tier. Does nothing the second time."""
        pages, self._pages, self._tensor = self._pages, None, None
        if pages is not None:
            pages.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


def slab(
    tier: Tier, label: str, numel: int, dtype: torch.dtype = torch.uint8, *, pin: bool = False
) -> Slab:
    """A zeroed flat CPU slab of exactly ``numel`` elements, entered in ``tier`` under ``label``.

    ``pin`` page-locks it for asynchronous copies where there is a CUDA device, and is void
    elsewhere. OutOfMemory, with nothing left behind, if the tier or the machine has no room.
    """
    nbytes = numel * dtype.itemsize
    pin = pin and nbytes > 0 and torch.cuda.is_available()
    with contextlib.ExitStack() as undo:
        tier.reserve(label, nbytes)
        undo.callback(tier.release, label)
        try:
            # Private: of shared anonymous memory, many systems make no huge pages.
            pages = _Pages(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise _refused(tier, label, nbytes, str(error)) from error
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        # The storage holds the pages, so a view that outlives its slab still has memory under it.
        whole = torch.frombuffer(pages, dtype=torch.uint8)
        if pin:
            try:
                bring([(whole.data_ptr(), nbytes)], available_cores())
            except OSError as error:
                raise _refused(tier, label, nbytes, error.strerror) from error
            if code := int(torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), nbytes, 0)):
                raise _refused(tier, label, nbytes, f"pinning failed with CUDA error {code}")
            undo.callback(torch.cuda.cudart().cudaHostUnregister, whole.data_ptr())
        pages.undo = undo.pop_all()
    return Slab(pages, whole[:nbytes].view(dtype), pinned=pin)


class _Pages(mmap.mmap):
    """Anonymous memory that unpins itself and leaves its tier before it is unmapped.

    A finalizer and not a weak reference: those of a map (and of the storage over it) run after the
    memory is gone, too late to unpin it.
    """

    undo: contextlib.ExitStack | None = None

    def release(self) -> None:
        undo, self.undo = self.undo, None
        if undo is not None:
            undo.close()

    def __del__(self) -> None:
        self.release()


def _refused(tier: Tier, label: str, nbytes: int, why: str) -> OutOfMemory:
    """The machine, and not the budget, has no room for a reservation that was just made."""
    return OutOfMemory(
        tier=tier.name, what=label, asked=nbytes, in_use=tier.in_use - nbytes, budget=None, why=why
    )
