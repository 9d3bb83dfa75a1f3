"""Counts the memory that a library uses on each tier, and its copies between them, from outside.

On a GPU the device allocator knows. On a CPU alone the "device" and the "host" tensors of an
offloading library are the same kind of memory, and the library's own counter is the size of the
process. Their purpose tells them apart: tensors that the offloaded optimizer owns
(master weights, moments, pinned gradient buffers, weights that wait to be fetched) would be on the
host of a machine with a GPU, everything else on its device. So this mode writes down every storage
that is born or dies and every copy while a step runs, and adds them up after the step, when it is
known which storages are the optimizer's.

It counts storages, as `workbench.runtime.memory.device_budget` does for our own methods: no
fragmentation, no rounding, no temporaries inside a kernel.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

COPY_INTO, COPY_OF = torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default
ALIASED = -1
"""Serial of device memory that no storage stands for: see `TransferCounter.alias`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCounts:
    """Bytes of one step."""

    device_peak_bytes: int
    device_bytes: int
    """In use when the step began."""
    load_bytes: int
    """Copied from host tensors to device tensors."""
    store_bytes: int
    """Copied the other way."""


class TransferCounter(TorchDispatchMode):
    """Counts a library's storages and copies; its figures are asked for step by step.

    `adopt` the tensors that exist, enter it around a step, and `close_step` when the step is done.
    """

    supports_higher_order_operators = True
    """A compiled block's backward pass, seen from outside, has operators of a higher order."""

    def __init__(self) -> None:
        super().__init__()
        self._serials: dict[int, int] = {}
        self._next = 0
        self._live: dict[int, int] = {ALIASED: 0}
        self._at_start: dict[int, int] = dict(self._live)
        self._log: list[tuple[int, int]] = []
        """(serial, bytes born or, negative, died) in order."""
        self._copies: list[tuple[int, int, int]] = []
        """(serial of the source, of the destination, bytes)."""
        self._alias_loads = 0
        self._on_cpu: set[int] = set()
        self._made_for_host: set[int] = set()
        self._host_work = False

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Enter tensors that exist already."""
        for tensor in tensors:
            self._serial(tensor)
        self._start()

    def alias(self, nbytes: int, *, loaded: bool) -> None:
        """Device memory taken (or, negative, given back) for which no storage is born.

        `loaded` says that a GPU's library would have filled it from the host.
        """
        self._change(ALIASED, nbytes)
        if loaded:
            self._alias_loads += nbytes

    @contextmanager
    def host_work(self) -> Iterator[None]:
        """Count storages born inside as the host's, even if nobody owns them after the step."""
        self._host_work = True
        try:
            yield
        finally:
            self._host_work = False

    def close_step(self, host: Iterable[Tensor] | None) -> StepCounts:
        """Return the step's counts, and begin the next step.

        `host` are the tensors that belong to the host; None where there is a GPU: those on the CPU.
        """
        owned = self._on_cpu if host is None else {self._serial(tensor) for tensor in host}
        ours = owned | self._made_for_host
        start = now = sum(n for serial, n in self._at_start.items() if serial not in ours)
        peak = start
        for serial, nbytes in self._log:
            if serial not in ours:
                now += nbytes
                peak = max(peak, now)
        crossing = [(s in ours, n) for s, d, n in self._copies if (s in ours) != (d in ours)]
        counts = StepCounts(
            device_peak_bytes=peak,
            device_bytes=start,
            load_bytes=sum(n for from_host, n in crossing if from_host) + self._alias_loads,
            store_bytes=sum(n for from_host, n in crossing if not from_host),
        )
        self._start()
        return counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, Tensor) and not value.is_meta:
                self._serial(value)
                if self._host_work:
                    self._made_for_host.add(self._serial(value))
        if func is COPY_INTO:
            self._copied(args[1], args[0])
        elif func is COPY_OF and out.device != args[0].device:  # else it is no transfer
            self._copied(args[0], out)
        return out

    def _copied(self, source: Tensor, target: Tensor) -> None:
        self._copies.append((self._serial(source), self._serial(target), target.nbytes))

    def _start(self) -> None:
        self._at_start = dict(self._live)
        self._on_cpu &= self._live.keys()
        self._made_for_host &= self._live.keys()
        self._log.clear()
        self._copies.clear()
        self._alias_loads = 0

    def _serial(self, tensor: Tensor) -> int:
        """Number of the tensor's storage; addresses are used again, numbers are not."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        serial = self._serials.get(key)
        if serial is None:
            serial, self._next = self._next, self._next + 1
            nbytes = storage.nbytes()
            self._serials[key] = serial
            if tensor.device.type == "cpu":
                self._on_cpu.add(serial)
            self._change(serial, nbytes)
            weakref.finalize(storage, self._died, key, serial, nbytes).atexit = False
        return serial

    def _died(self, key: int, serial: int, nbytes: int) -> None:
        del self._serials[key]
        self._change(serial, -nbytes)

    def _change(self, serial: int, nbytes: int) -> None:
        self._log.append((serial, nbytes))
        left = self._live.get(serial, 0) + nbytes
        if left or serial == ALIASED:
            self._live[serial] = left
        else:
            self._live.pop(serial, None)


def tensors_in(*roots: object, inside: tuple[str, ...] = ()) -> Iterator[Tensor]:
    """Every tensor and its gradient that containers, and objects of the modules `inside`, hold."""
    left, seen = deque(roots), set()
    while left:
        value = left.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.is_meta:
                continue
            yield value
            if value.is_leaf and value.grad is not None:
                yield value.grad
        elif isinstance(value, dict):
            left.extend(value.keys())
            left.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset | deque):
            left.extend(value)
        elif type(value).__module__.startswith(inside or ("\0",)):
            left.extend(vars(value).values())


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind tensors, each counted once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
