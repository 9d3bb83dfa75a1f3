"""CUDA graphs of what a thread launches, their memory, and tensors at addresses there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor


def pool_bytes(pools: Sequence[tuple[int, int]]) -> int:
    """Bytes in which recordings of these pools work. The allocator takes them for free, since no
    tensor is there."""
    own = {tuple(pool) for pool in pools}
    mine = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) in own]
    return sum(s["total_size"] - s["allocated_size"] for s in mine)


@contextmanager
def recording(pool: tuple[int, int]) -> Iterator[torch.cuda.CUDAGraph]:
    """Record the work launched within, instead of doing it; it works in the pool's memory."""
    graph = torch.cuda.CUDAGraph()
    # Autograd launches from a thread of its own, on this stream: it is recorded all the same.
    graph.capture_begin(pool, capture_error_mode="thread_local")
    try:
        yield graph
        graph.capture_end()
    except BaseException:
        with suppress(RuntimeError):  # what broke it is what matters
            graph.capture_end()
        _left_off(pool)
        raise


def _left_off(pool: tuple[int, int]) -> None:
    """Undo what a recording that failed has left: torch gives its memory back, and draws random
    numbers on the device, only after one that ended."""
    index = torch.cuda.current_device()
    with suppress(RuntimeError):  # it was ended
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
    own, fresh = torch.cuda.default_generators[index], torch.Generator(f"cuda:{index}")
    fresh.set_state(own.get_state())
    own.graphsafe_set_state(fresh)


class _Address:
    """Memory that somebody else owns, as torch takes it (the CUDA array interface)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def there(tensor: Tensor) -> Tensor:
    """A tensor where this one is, that does not keep its memory from being used again."""
    storage = tensor.untyped_storage()
    whole = torch.as_tensor(_Address(storage.data_ptr(), storage.nbytes()), device=tensor.device)
    elements = whole.view(tensor.dtype)
    return elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
