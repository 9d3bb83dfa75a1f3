"""Real work of each lane, piece by piece, to be timed alone and beside other lanes.

The pieces are what the runtime does: one copy of a layer's flat slab, one fused AdamW over a slab,
the forward and backward pass of one block, one slab to or from the disk. Each load walks a ring of
slabs larger than the last-level cache, as a model's layers are.

A sample is as many pieces as take 10 ms or more. A single short piece would fit between two
decisions of the system's scheduler, and the median of many such would not show that two lanes
shared a core. On CUDA, seconds are taken on the device, between two events of the load's stream.
Passes are enqueued while the device waits, as those of a run are while it is busy with passes
before: else a sample's first launches would count, which threads of other lanes delay.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import Self

import torch
from torch import Tensor

from workbench.core.spec import VALUE_BYTES
from workbench.model import ModelSpec, make_model
from workbench.profile.alone import Alone, Setting
from workbench.profile.bench import CYCLES_PER_S, clock_of
from workbench.profile.timing import Sample, brief, lasting
from workbench.runtime.executor.threads import POLITENESS, cpu_threads
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.disk import DiskStore
from workbench.runtime.memory.tiers import Slab, Tier, slab
from workbench.runtime.updates import device_adam, host_adam
from workbench.runtime.updates.adam_step import AdamStep

PIECE_BYTES = {"cpu": 8 << 20, "cuda": 64 << 20}
"""One copy: about a layer's slab at the sizes each device is used for."""
RING_BYTES = 256 << 20
"""Bytes that a load walks through: more than any last-level cache."""
FEWEST = 4
"""Pieces of a ring; all of them where timings are brief, since nobody asks how long they take."""
SAMPLE_S = 0.01
"""Shortest sample."""
LATE = 3.0
"""How many times as long launches may take beside another lane."""
NUMEL = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Parameters of one update, likewise."""
HYPER = AdamStep(
    step=10, lr=1e-4, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, grad_scale=0.5
)


class Load(ABC):
    """Work of one lane."""

    amount: float
    """Work of one piece: bytes, parameters or floating-point operations."""
    bytes_each = 1
    """Bytes of memory that a part of the amount reads and writes; meant for bytes and
    parameters."""
    computes = True
    """Whether the calling thread does the work itself, as far as it is not the GPU's."""
    ahead = False
    """Whether a GPU waits until the pieces of a sample are enqueued."""
    threads = 1
    """Threads torch may use for it: the lanes beside the compute lane have one each."""

    def __init__(self, device: torch.device, *, piece_bytes: int) -> None:
        """`piece_bytes` are what a piece touches; they decide how many make the ring."""
        self.device = device
        self.ring = FEWEST if brief() else min(16, max(FEWEST, RING_BYTES // piece_bytes))
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._slabs: list[Slab] = []
        self._turn = 0
        self._pieces = 0
        self._launch_s = self._wait_s = 0.0

    @abstractmethod
    def work(self, index: int) -> None:
        """Do, or on CUDA enqueue, piece `index` of the ring."""

    def once(self) -> Sample:
        """Take one sample in the calling thread; its seconds are those of a piece."""
        if self.device.type == "cpu":
            torch.set_num_threads(self.threads)  # holds for this thread
        if not self._pieces:
            self._timed(1)
            self._pieces = max(1, math.ceil(lasting(SAMPLE_S) / self._timed(1).wall))
            if self.ahead:
                self._wait_s = LATE * self._pieces * self._launch_s
        wall, cpu = self._timed(self._pieces)
        return Sample(wall / self._pieces, cpu / self._pieces)

    def _timed(self, pieces: int) -> Sample:
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            if self._stream is not None and self._wait_s:
                torch.cuda._sleep(int(self._wait_s * CYCLES_PER_S))
            began = time.perf_counter()
            read = clock_of(self.device)(lambda: self._run(pieces))
            self._launch_s = time.perf_counter() - began
        wall, cpu = read()
        return Sample(wall, cpu if self.computes else wall)

    def _run(self, pieces: int) -> None:
        for _ in range(pieces):
            self.work(self._turn)
            self._turn = (self._turn + 1) % self.ring

    def close(self) -> None:
        """Give the memory back."""
        for held in self._slabs:
            held.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def host_slab(self, tier: Tier, nbytes: int, *, pin: bool = True) -> Tensor:
        """A host slab whose every page is there."""
        made = slab(tier, f"{id(self)}.{len(self._slabs)}", nbytes, torch.uint8, pin=pin)
        self._slabs.append(made)
        return made.tensor.zero_()


class Copy(Load):
    """One lane of the link; without a GPU, a host memory copy by the lane's thread."""

    def __init__(
        self,
        device: torch.device,
        *,
        to_device: bool,
        pin: bool = True,
        nbytes: int | None = None,
    ) -> None:
        nbytes = nbytes or PIECE_BYTES[device.type]
        super().__init__(device, piece_bytes=2 * nbytes)
        self.amount = nbytes
        host = self.host_slab(Tier("host"), nbytes * self.ring, pin=pin).split(nbytes)
        here = torch.zeros(nbytes * self.ring, dtype=torch.uint8, device=device).split(nbytes)
        self._source, self._target = (host, here) if to_device else (here, host)

    def work(self, index: int) -> None:
        self._target[index].copy_(self._source[index], non_blocking=True)

    def close(self) -> None:
        self._source = self._target = ()
        super().close()


class Adam(Load):
    """One AdamW over a slab: fp32 throughout, or (`narrow`) bf16 gradients and split masters.

    `threads` are the kernel's own, not torch's, and `niceness` is theirs.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        threads: int,
        numel: int,
        narrow: bool,
        niceness: int = 0,
    ) -> None:
        super().__init__(device, piece_bytes=16 * numel)
        self.amount, self._kernel_threads = numel, threads
        self.bytes_each = 26 if narrow else 28
        on_host = partial(host_adam.update, niceness=niceness)
        self._update = on_host if device.type == "cpu" else device_adam.update
        dtype = torch.bfloat16 if narrow else torch.float32
        self._moments = self._zeros(2, numel, dtype=torch.float32)
        self._grads = [grad[0].fill_(1e-3) for grad in self._zeros(1, numel, dtype=dtype)]
        self._weights = [weights[0] for weights in self._zeros(1, numel, dtype=dtype)]
        self._rests = self._zeros(1, numel, dtype=torch.int16) if narrow else None

    def by(self, threads: int) -> Self:
        """An equal update by so many threads, in the memory of this load, which rests meanwhile."""
        other = copy(self)
        other._kernel_threads, other._pieces, other._slabs = threads, 0, []
        return other

    def _zeros(self, *shape: int, dtype: torch.dtype) -> list[Tensor]:
        """One for each piece of the ring; on the host in slabs, as the runtime's are."""
        if self.device.type != "cpu":
            return [torch.zeros(shape, dtype=dtype, device=self.device) for _ in range(self.ring)]
        nbytes = math.prod(shape) * dtype.itemsize
        made = [self.host_slab(Tier("host"), nbytes, pin=False) for _ in range(self.ring)]
        return [memory.view(dtype).view(shape) for memory in made]

    def close(self) -> None:
        self._moments = self._grads = self._weights = self._rests = None
        super().close()

    def work(self, index: int) -> None:
        exp_avg, exp_avg_sq = self._moments[index]
        self._update(
            self._weights[index],
            exp_avg,
            exp_avg_sq,
            self._grads[index],
            HYPER,
            decay_split=int(self.amount),
            rest=None if self._rests is None else self._rests[index][0],
            threads=self._kernel_threads,
        )


class Product(Load):
    """A matrix product of the shape of a layer's: [tokens, h] by [h, 4 h]; of `few`, if given."""

    def __init__(self, device: torch.device, dtype: torch.dtype, few: int = 0) -> None:
        tokens, hidden = (few or 512, 512) if device.type == "cpu" else (few or 4096, 4096)
        super().__init__(device, piece_bytes=4 * hidden * hidden * dtype.itemsize)
        self.threads = cpu_threads(device.type).compute
        self.amount = 2.0 * tokens * hidden * 4 * hidden
        self._x = torch.randn(tokens, hidden, device=device).to(dtype)
        self._weights = torch.randn(self.ring, hidden, 4 * hidden, device=device).to(dtype)
        self._out = torch.empty(tokens, 4 * hidden, dtype=dtype, device=device)

    def work(self, index: int) -> None:
        torch.mm(self._x, self._weights[index], out=self._out)


def host_adam_load(device: torch.device, threads: int, *, parts: int = 1) -> Adam:
    """A host update as runs on `device` have it: with a GPU, bf16 gradients and working weights, by
    threads that let launches go first. One of `parts` processes that update at once has a part of
    the memory."""
    gpu, cpu = device.type == "cuda", torch.device("cpu")
    numel, niceness = NUMEL[device.type] // parts, POLITENESS if gpu else 0
    return Adam(cpu, threads=threads, numel=numel, narrow=gpu, niceness=niceness)


def device_adam_load(device: torch.device, threads: int) -> Adam:
    """An update of a layer that is resident on `device`."""
    narrow = device.type == "cuda"
    return Adam(device, threads=threads, numel=NUMEL[device.type], narrow=narrow)


class Layer(Load):
    """Forward and backward pass of one transformer block: what the compute lane does all day."""

    ahead = True

    def __init__(self, device: torch.device) -> None:
        hidden, seq, batch = (256, 128, 4) if device.type == "cpu" else (2048, 1024, 4)
        dtype = "fp32" if device.type == "cpu" else "bf16"
        super().__init__(device, piece_bytes=24 * hidden * hidden * VALUE_BYTES[dtype])
        self.threads = cpu_threads(device.type).compute
        shape = ModelSpec(layers=self.ring, hidden=hidden, heads=hidden // 64, seq=seq, vocab=64)
        model, meter = make_model(shape), device_meter(device)
        how = {"dtype": dtype, "device": device.type}
        setting = Setting.of_tokens(model, (batch, seq), **how)
        self._blocks = [Alone(setting, 1 + i, meter) for i in range(self.ring)]
        self.amount = 3 * model.flops(1, batch, seq)

    def work(self, index: int) -> None:
        self._blocks[index].there_and_back()


class Disk(Load):
    """Slabs to (`write`) or from the scratch file that the runtime's disk tier uses."""

    computes = False

    def __init__(self, store: DiskStore, *, write: bool) -> None:
        nbytes = PIECE_BYTES["cpu"]
        super().__init__(torch.device("cpu"), piece_bytes=nbytes)
        self.amount = nbytes
        self._data = self.host_slab(Tier("host"), nbytes, pin=False)
        self.direct = store.direct
        self._move = store.write if write else store.read
        if write:
            for index in range(self.ring):
                store.allocate(f"piece {index}", nbytes)

    def work(self, index: int) -> None:
        self._move(f"piece {index}", self._data)
