"""Passes of blocks as recordings, which a GPU launches by itself.

A block's forward pass is a dozen launches and its backward pass two dozen more, made by one thread
that shares the interpreter with the lanes of copies and host updates, and the processor with the
updates' threads. On an H200 with 16 cores, layers of 50 M parameters and batch 4, a recomputation
of 0.7 ms took up to 2.3 ms beside them, and a backward pass of 1.6 up to 3.7. A CUDA graph of the
same kernels is one launch. They are the same kernels on the same numbers: results are equal to the
bit.

A recording knows addresses, not tensors. So what goes in is copied to buffers that all recordings
share, and what comes out is copied from where a recording leaves it. All of them work in one pool
of memory: what one leaves there the next may overwrite. That is right as long as passes run in the
order in which they were recorded: a forward pass alone, a backward pass from a checkpoint, or a
*chain*, which is some blocks' passes that keep what is needed, and then their backward passes, with
nothing recorded in between. Where positions flow beside the hidden states, each pass is recorded
twice: for samples that are `uniform` (model/base.py), and for any others.

Matrix products have a workspace for each thread and stream. So passes are recorded on the stream
and by the thread of the compute lane, and share theirs with the passes that are launched there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor, nn

from workbench.runtime.executor import stream_pool
from workbench.runtime.memory.device_budget import CudaMeter
from workbench.runtime.passes.bundle import Boundary, Bundle
from workbench.schedule.action import COMPUTE

WARM_UP = 2
"""Passes before the first recording: they compile, and libraries take their workspaces."""

Key = tuple[Hashable, bool]
"""A key of the caller's, and whether samples are uniform; they are where nothing flows beside the
hidden states."""
Pass = Callable[..., Tensor]
"""(kind, module, hidden states, what flows beside them unless samples are uniform) -> output."""
NOTHING: Mapping[Hashable, Chain] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Blocks that are passed one after the other and then, in the opposite order, backward. The
    addresses of their weights must not change."""

    kinds: tuple[str, ...]
    """Kind of each block."""
    modules: tuple[nn.Module, ...]
    parameters: tuple[list[nn.Parameter], ...]
    """Parameters of each module, in the order in which their gradients are wanted."""
    rows: int
    """Samples."""

    @classmethod
    def alone(
        cls, kind: str, module: nn.Module, parameters: list[nn.Parameter], rows: int
    ) -> Chain:
        """A chain of one block."""
        return cls(kinds=(kind,), modules=(module,), parameters=(parameters,), rows=rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recorded:
    """A chain's recordings, and where they leave what comes out."""

    again: list[torch.cuda.CUDAGraph]
    back: list[torch.cuda.CUDAGraph]
    grads: list[list[Tensor]]
    output: Bundle
    input_grad: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _FromCheckpoint:
    """A block's backward pass that begins at its input, and where it leaves what comes out."""

    graph: torch.cuda.CUDAGraph
    grads: list[Tensor]
    input_grad: Tensor


class Replays:
    """Recorded passes, by keys of the caller's."""

    def __init__(
        self,
        run: Pass,
        boundary: Boundary,
        rows: int,
        meter: CudaMeter,
        *,
        checkpointed: Pass | None = None,
    ) -> None:
        """`run` makes a block's output from its kind, its module and an input of the same shape, of
        at most so many samples as `boundary` says; `checkpointed` likewise, and keeps nothing but
        the input. Parts of the input behind the first one flow through a block as they are."""
        self._run, self._checkpointed, self._meter = run, checkpointed, meter
        self.stream = stream_pool.take(meter.device)
        """The compute lane's."""
        shapes = [part.full_shape(rows) for part in boundary.parts]
        self._input = tuple(  # [samples, ...] each, as a block takes them
            meter.zeros(prod(shape), dtype).view(shape)
            for shape, dtype in zip(shapes, boundary.dtypes, strict=True)
        )
        size = self._input[0].numel()
        self._output_grad = meter.zeros(size, boundary.dtypes[0]).view(shapes[0])
        self._forms = (True,) if len(shapes) == 1 else (False, True)
        """Whether samples are uniform, of the recordings of each pass."""
        self._forward: dict[Key, tuple[torch.cuda.CUDAGraph, Bundle]] = {}
        self._chains: dict[Key, _Recorded] = {}
        self._backs: dict[Key, _FromCheckpoint] = {}
        self._begun: tuple[Key, int] | None = None
        """The chain in whose passes the GPU is, and how many are left; None between chains."""
        self._pool = torch.cuda.graph_pool_handle()

    def record(
        self,
        forwards: Mapping[Hashable, Chain],
        chains: Mapping[Hashable, Chain],
        checkpoints: Mapping[Hashable, Chain] = NOTHING,
    ) -> None:
        """Record forward passes of single blocks, chains, and backward passes of single blocks that
        begin at a checkpoint. Nothing else may run on the device meanwhile."""
        torch.cuda.synchronize(self._meter.device)
        with self._meter, torch.cuda.stream(self.stream):
            for form in self._forms:
                for block in _of_each_kind(forwards.values()):
                    self._warm_up(block, form)
                for block in _of_each_kind(chains.values()):
                    self._warm_up(block, form, backward=True)
                for block in _of_each_kind(checkpoints.values()):
                    self._warm_up(block, form, backward=True, checkpointed=True)
            torch.cuda.synchronize(self._meter.device)
            torch.cuda.empty_cache()
            for form in self._forms:
                for key, chain in forwards.items():
                    self._forward[key, form] = self._alone(chain, form)
                for key, chain in chains.items():
                    self._chains[key, form] = self._chain(chain, form)
                for key, chain in checkpoints.items():
                    self._backs[key, form] = self._back(chain, form)
        torch.cuda.synchronize(self._meter.device)
        torch.cuda.empty_cache()
        self.nbytes = pool_bytes([self._pool])
        self._meter.set_apart(self.nbytes)

    def forward(self, key: Key, x: Bundle) -> Bundle:
        """A block's output, without what its backward pass needs; it is there until the next
        recorded pass."""
        self._enter(None)
        graph, y = self._forward[key]
        self._take(x)
        graph.replay()
        return y

    def recompute(self, key: Key, x: Bundle | None, index: int = 0) -> None:
        """The pass of a chain's block with what its backward pass needs. The first one takes the
        chain's input, the others what the one before made."""
        if index == 0:
            self._enter((key, 2 * len(self._chains[key].again)))
            self._take(x)
        self._pass(key)
        self._chains[key].again[index].replay()

    def output(self, key: Key) -> Bundle:
        """Output of the chain's last block; it is there until the chain's next pass."""
        return self._chains[key].output

    def backward(
        self, key: Key, output_grad: Tensor | None, index: int = 0
    ) -> tuple[Tensor | None, list[Tensor]]:
        """The gradients of the chain's input, from its first block, and of a block's parameters;
        they are there until the next recorded pass. The last block takes the output's."""
        chain = self._chains[key]
        if index == len(chain.back) - 1:
            self._output_grad[: len(output_grad)].copy_(output_grad)
        self._pass(key)
        chain.back[index].replay()
        return None if index else chain.input_grad, chain.grads[index]

    def from_checkpoint(
        self, key: Key, x: Bundle, output_grad: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The gradients of a block's input and parameters by a backward pass that begins at the
        input; they are there until the next recorded pass."""
        self._enter(None)
        back = self._backs[key]
        self._take(x)
        self._output_grad[: len(output_grad)].copy_(output_grad)
        back.graph.replay()
        return back.input_grad, back.grads

    def forget(self) -> None:
        """Let go of a chain that was begun; the device is done with its passes."""
        self._begun = None

    def close(self) -> None:
        """Let go of all recordings and what they worked in; none may be running."""
        for held in (self._forward, self._chains, self._backs):
            held.clear()
        self._input, self._output_grad = (), None
        stream_pool.give_back({COMPUTE: self.stream})

    def _take(self, x: Bundle) -> None:
        """Put an input where recordings read it."""
        for own, tensor in zip(self._input, x, strict=True):
            own[: len(tensor)].copy_(tensor)

    def _given(self, rows: int, form: bool) -> Bundle:
        """The place of so many samples' input, as `run` takes it."""
        return tuple(own[:rows] for own in self._input[: 1 if form else None])

    def _left(self, y: Tensor, rows: int) -> Bundle:
        """Where an output is after a recorded pass."""
        return (_there(y), *(own[:rows] for own in self._input[1:]))

    def _enter(self, begun: tuple[Key, int] | None) -> None:
        """Begin a chain or a pass alone. Raises RuntimeError within a chain, whose memory it would
        overwrite."""
        if self._begun is not None:
            raise RuntimeError(f"{self._begun[1]} recorded passes of a chain are still to come")
        self._begun = begun

    def _pass(self, key: Key) -> None:
        """Count a pass of a chain."""
        if self._begun is None or self._begun[0] != key:
            raise RuntimeError("a recorded pass of a chain that was not begun")
        left = self._begun[1] - 1
        self._begun = (key, left) if left else None

    def _warm_up(
        self, chain: Chain, form: bool, *, backward: bool = False, checkpointed: bool = False
    ) -> None:
        """Passes of a block as they will be recorded: what is passed forward alone may have no room
        for more."""
        (kind,), (module,), (parameters,) = chain.kinds, chain.modules, chain.parameters
        given = self._given(chain.rows, form)
        for _ in range(WARM_UP):
            if backward:
                x, y = self._differentiated(kind, module, given, checkpointed)
                self._gradients(x, y, parameters, self._output_grad[: chain.rows])
                del x, y
            else:
                with torch.no_grad():
                    self._run(kind, module, *given)

    def _alone(self, chain: Chain, form: bool) -> tuple[torch.cuda.CUDAGraph, Bundle]:
        with recording(self._pool) as graph, torch.no_grad():
            y = self._run(chain.kinds[0], chain.modules[0], *self._given(chain.rows, form))
        return graph, self._left(y, chain.rows)

    def _chain(self, chain: Chain, form: bool) -> _Recorded:
        (x, *beside), passes = self._given(chain.rows, form), []
        again, back, grads = [], [], []
        for kind, module in zip(chain.kinds, chain.modules, strict=True):
            with recording(self._pool) as graph:
                passes.append(self._differentiated(kind, module, (x, *beside)))
            again.append(graph)
            x = passes[-1][1]
        output = self._left(x, chain.rows)
        del x
        above = self._output_grad[: chain.rows]
        for parameters in reversed(chain.parameters):
            with recording(self._pool) as graph:
                above, *found = self._gradients(*passes.pop(), parameters, above)
            back.append(graph)
            grads.append([_there(grad) for grad in found])
            del found
        back.reverse()
        grads.reverse()
        return _Recorded(
            again=again, back=back, grads=grads, output=output, input_grad=_there(above)
        )

    def _back(self, chain: Chain, form: bool) -> _FromCheckpoint:
        """The forward pass is launched: its backward pass reads nothing of it but the input, which
        profiles see (profile/variants.py)."""
        (kind,), (module,), (parameters,) = chain.kinds, chain.modules, chain.parameters
        x, y = self._differentiated(kind, module, self._given(chain.rows, form), True)
        with recording(self._pool) as graph:
            above, *found = self._gradients(x, y, parameters, self._output_grad[: chain.rows])
        grads = [_there(grad) for grad in found]
        return _FromCheckpoint(graph=graph, grads=grads, input_grad=_there(above))

    def _differentiated(
        self, kind: str, module: nn.Module, given: Bundle, checkpointed: bool = False
    ) -> tuple[Tensor, Tensor]:
        x, run = given[0].detach().requires_grad_(), self._run
        if checkpointed:
            run = self._checkpointed
        with torch.enable_grad():
            return x, run(kind, module, x, *given[1:])

    def _gradients(
        self, x: Tensor, y: Tensor, parameters: list[nn.Parameter], output_grad: Tensor
    ) -> tuple[Tensor, ...]:
        through = (x, *parameters)
        return torch.autograd.grad(y, through, output_grad, materialize_grads=True)


def _of_each_kind(chains: Iterable[Chain]) -> list[Chain]:
    """A block of each kind and number of samples among some chains, alone."""
    found = {
        (block[0], chain.rows): Chain.alone(*block, chain.rows)
        for chain in chains
        for block in zip(chain.kinds, chain.modules, chain.parameters, strict=True)
    }
    return [*found.values()]


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
    except BaseException:
        with suppress(RuntimeError):  # what broke it is what matters
            graph.capture_end()
        raise
    graph.capture_end()


class _Address:
    """Memory that somebody else owns, as torch takes it (the CUDA array interface)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def _there(tensor: Tensor) -> Tensor:
    """A tensor where this one is, that does not keep its memory from being used again."""
    storage = tensor.untyped_storage()
    whole = torch.as_tensor(_Address(storage.data_ptr(), storage.nbytes()), device=tensor.device)
    elements = whole.view(tensor.dtype)
    return elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
