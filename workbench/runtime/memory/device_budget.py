"""How much device memory a run holds, and an end to it where its budget ends.

The largest trainable model is what STRONGHOLD is compared by (SC'22, figure 6), so the device's
size must be something one can set. On CUDA the allocator is told the limit and counts. On a
machine without a GPU the device tier is ordinary memory, and a dispatch mode counts it: every
operation of the compute thread passes through, and each storage that comes out of one is counted
from then until it is freed. That is exact to the byte of the tensors that exist; unlike on a GPU
there is no rounding to blocks, no fragmentation, no library workspace, and what a kernel allocates
and frees inside itself is not seen. It costs about 6 microseconds per operation, 5 of them torch's
own for any such mode: under 10 % of a step once operations take 60 microseconds, more for toys.

Device and host are the same memory there, so what belongs to the host tier must be named:
``exclude`` for tensors that exist, ``on_host`` around operations that make some. And the counting
is per thread: lanes that copy between the tiers work on slabs that were entered beforehand, and
are left in peace.
"""

import re
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from workbench.core.bytesize import format_bytes, parse_bytes
from workbench.runtime.memory.named_operators import name_operators
from workbench.runtime.memory.tiers import OutOfMemory


def device_meter(device: torch.device, budget: int | None = None) -> "DeviceMeter":
    """The meter for ``device``: OutOfMemory past ``budget`` bytes (None: what the device has)."""
    if budget is not None and budget < 1:
        raise ValueError(f"the device budget is {budget} bytes; at least 1 is needed")
    return CudaMeter(device, budget) if device.type == "cuda" else StorageMeter(budget)


def confine(device: torch.device, budget: int | None) -> None:
    """Have torch's allocator take no more of a GPU than so many bytes; None for all of it."""
    if device.type == "cuda":
        if device.index is None:  # torch's limit is of a numbered device
            device = torch.device("cuda", torch.cuda.current_device())
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (budget or whole) / whole), device)


@contextmanager
def lent(device: torch.device, budget: int | None, *, beyond: bool) -> Iterator[int]:
    """Within, torch's allocator holds no more of a GPU than it gave out at once until now, or
    `beyond` that no more than a budget, None for all of it; yields the bytes that are left. What it
    keeps for later is given back before and after."""
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(device).total_memory
    before = round(torch.cuda.get_per_process_memory_fraction(device) * whole)
    held = torch.cuda.memory_reserved(device)
    free = (budget or whole) - held
    if not beyond:  # gaps in what it holds are given out first
        free = min(free, torch.cuda.max_memory_allocated(device) - held)
    free = max(0, free)
    confine(device, max(1, held + free))
    try:
        yield free
    finally:
        torch.cuda.empty_cache()
        share = min(1.0, (before + 0.5) / whole)  # of which torch takes whole bytes
        torch.cuda.set_per_process_memory_fraction(share, device)


class DeviceMeter(ABC):
    """Counts device memory while a thread is inside ``with meter``; any number may be."""

    budget: int | None
    """Bytes the device tier may hold."""

    @property
    @abstractmethod
    def now(self) -> int:
        """Bytes in use."""

    @property
    @abstractmethod
    def peak(self) -> int:
        """The most bytes in use at once since the last ``reset_peak``; never above the budget."""

    @property
    @abstractmethod
    def left(self) -> int:
        """Bytes that are not in use."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Begin the peak again at the bytes in use."""

    @abstractmethod
    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A flat device allocation, counted in any thread; OutOfMemory if there is no room."""

    @abstractmethod
    def register(self, tensor: Tensor) -> None:
        """Count a storage that no operation inside the meter made, such as a batch moved in."""

    @abstractmethod
    def exclude(self, tensor: Tensor) -> None:
        """Never count the storage of this tensor (again): it belongs to the host tier."""

    @abstractmethod
    def avoid_fragments(self) -> None:
        """Let later allocations take new memory, not only gaps between existing ones: memory that
        must be shared with other processes, or recorded, has been made."""

    @abstractmethod
    def close(self) -> None:
        """Let the process have the device as before, whatever else it does with it."""

    @abstractmethod
    def on_host(self) -> Any:
        """A context in which what this thread's operations make belongs to the host tier."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


class StorageMeter(DeviceMeter):
    """The device tier of a machine without a GPU, counted by storage."""

    def __init__(self, budget: int | None = None) -> None:
        name_operators()
        self.budget = budget
        self._now = 0
        self._peak = 0
        self._known: dict[int, _Storage] = {}
        # Storages are freed in any thread at any instruction, this class's own included. So their
        # callbacks only leave a note here, and the next caller that asks for the balance settles it
        # under the lock.
        self._freed: deque[_Storage] = deque()
        self._lock = threading.Lock()
        self._modes = threading.local()

    @property
    def now(self) -> int:
        with self._lock:
            self._settle()
            return self._now

    @property
    def peak(self) -> int:
        return self._peak

    @property
    def left(self) -> int:
        return sys.maxsize if self.budget is None else self.budget - self.now

    def reset_peak(self) -> None:
        with self._lock:
            self._settle()
            self._peak = self._now

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        nbytes = numel * dtype.itemsize
        if self.budget is not None and (in_use := self.now) + nbytes > self.budget:
            raise self._full(nbytes, in_use)
        with self.on_host():  # counted below, once, inside a mode or not
            tensor = torch.zeros(numel, dtype=dtype)
        self.register(tensor)
        return tensor

    def register(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._forget(storage)
        if error := self._see(storage, counted=True):
            self._forget(storage)
            raise error

    def exclude(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._forget(storage)
        self._see(storage, counted=False)

    def avoid_fragments(self) -> None:
        """Nothing to do: it counts bytes, wherever they are."""

    def close(self) -> None:
        """Nothing to do: only what is inside ``with`` is counted."""

    @contextmanager
    def on_host(self) -> Iterator[None]:
        if not (stack := self._stack()):  # nothing is being counted in this thread
            yield
            return
        mode = stack[-1]
        before, mode.counted = mode.counted, False
        try:
            yield
        finally:
            mode.counted = before

    def __enter__(self) -> Self:
        stack = self._stack()
        if not stack:
            mode = _Counting(self._see)
            mode.__enter__()
            stack.append(mode)
        else:
            stack.append(stack[-1])  # counting once is enough
        return self

    def __exit__(self, *failure: object) -> None:
        stack = self._stack()
        mode = stack.pop()
        if not stack:
            mode.__exit__(*failure)

    def _stack(self) -> list["_Counting"]:
        """The modes this thread has entered, the same one again for each nesting."""
        if not hasattr(self._modes, "stack"):
            self._modes.stack = []
        return self._modes.stack

    def _see(self, storage: torch.UntypedStorage, counted: bool) -> OutOfMemory | None:
        """Enter a storage that is not known yet; the error to raise if it passes the budget."""
        with self._lock:
            self._settle()
            known = self._known.get(id(storage))
            if known is not None:
                if not known.counted or known.nbytes == storage.nbytes():
                    return None
                self._drop(known)  # resized since
            made = _Storage(storage, self._freed.append)
            made.key, made.nbytes, made.counted = id(storage), storage.nbytes(), counted
            self._known[made.key] = made
            if not counted:
                return None
            self._now += made.nbytes
            if self.budget is not None and self._now > self.budget:
                return self._full(made.nbytes, self._now - made.nbytes)
            self._peak = max(self._peak, self._now)
            return None

    def _forget(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            self._settle()
            if (known := self._known.get(id(storage))) is not None:
                self._drop(known)

    def _settle(self) -> None:
        """Strike out what was freed, before any lookup: a new storage may have an old one's id."""
        while self._freed:
            gone = self._freed.popleft()
            if self._known.get(gone.key) is gone:
                self._drop(gone)

    def _drop(self, known: "_Storage") -> None:
        del self._known[known.key]
        self._now -= known.nbytes if known.counted else 0

    def _full(self, asked: int, in_use: int) -> OutOfMemory:
        return OutOfMemory(
            tier="device", what="a tensor", asked=asked, in_use=in_use, budget=self.budget
        )


class _Storage(weakref.ref):
    """A storage under observation; its callback gets this very object when it is freed."""

    __slots__ = ("counted", "key", "nbytes")
    key: int
    nbytes: int
    counted: bool


class _Counting(TorchDispatchMode):
    """Shows every storage that operations of one thread return to ``see``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No graph is made where this counts; asked whether to skip one, torch would import its
        compiler for a second, and ask with every operation."""
        return False

    def __init__(self, see: Callable[[torch.UntypedStorage, bool], OutOfMemory | None]) -> None:
        super().__init__()
        self.counted = True
        self._see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # Nearly all operations return one tensor; walking a tree costs more than the rest together.
        for tensor in (out,) if isinstance(out, Tensor) else tree_iter(out):
            if not isinstance(tensor, Tensor) or tensor.device.type == "meta":  # of no bytes
                continue
            if error := self._see(tensor.untyped_storage(), self.counted):
                # A device would have refused: let go of the result before anyone can hold on to
                # this frame.
                del out, tensor, args, kwargs
                raise error
        return out


class CudaMeter(DeviceMeter):
    """A CUDA device, limited and counted by torch's allocator."""

    def __init__(self, device: torch.device, budget: int | None = None) -> None:
        self.device = device
        self.budget = budget
        self._apart = 0
        total = torch.cuda.get_device_properties(device).total_memory
        if budget is not None and budget > total:
            raise ValueError(f"the device budget is {budget} bytes; {device} has {total}")
        confine(device, budget)
        self.reset_peak()

    @property
    def now(self) -> int:
        return torch.cuda.memory_allocated(self.device) + self._apart

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) + self._apart

    @property
    def left(self) -> int:
        free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)
        whole = min(free, sys.maxsize if self.budget is None else self.budget)
        return whole - self.now

    @property
    def reserved_peak(self) -> int:
        """The most bytes the allocator held from the device, fragments between tensors included."""
        return torch.cuda.max_memory_reserved(self.device)

    def set_apart(self, nbytes: int) -> None:
        """So much is in use besides, by recordings, of which the allocator counts nothing but while
        they are made: the peak is counted from here on."""
        self._apart = nbytes
        self.reset_peak()

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def zeros(self, numel: int, dtype: torch.dtype) -> Tensor:
        with self:
            return torch.zeros(numel, dtype=dtype, device=self.device)

    def register(self, tensor: Tensor) -> None:
        """Nothing to do: the allocator made it."""

    def exclude(self, tensor: Tensor) -> None:
        """Nothing to do: host memory is not the allocator's."""

    def avoid_fragments(self) -> None:
        """Let the allocator put pages together, instead of asking the device for pieces as large as
        each tensor: inputs of a whole minibatch come and go between activations of one micro-batch,
        and of 1 GiB they left 80 MiB in pieces."""
        torch.cuda.empty_cache()
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")

    def close(self) -> None:
        confine(self.device, None)
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
        torch.cuda.empty_cache()

    @contextmanager
    def on_host(self) -> Iterator[None]:
        yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Turn torch's out-of-memory error into ours."""
        if not isinstance(error, torch.OutOfMemoryError):
            return
        asked = re.search(r"allocate ([\d.]+ [KMGT]?i?B)", str(error))
        raise OutOfMemory(
            tier="device",
            what="a tensor",
            asked=parse_bytes(asked[1]) if asked else 0,
            in_use=self.now,
            budget=self.budget,
            why=self._held(),
        ) from error

    def _held(self) -> str:
        """How much torch's allocator holds, and of it beside tensors."""
        reserved = torch.cuda.memory_reserved(self.device)
        free = reserved - torch.cuda.memory_allocated(self.device)
        return (
            f"torch's allocator holds {format_bytes(reserved)}, of which {format_bytes(free)} lie "
            "in pieces between tensors"
        )
