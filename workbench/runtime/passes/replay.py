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

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor, nn

from workbench.runtime.executor import stream_pool
from workbench.runtime.memory.device_budget import CudaMeter
from workbench.runtime.passes.bundle import Boundary, Bundle, bundled, copy_into
from workbench.runtime.passes.graphs import pool_bytes, recording, there
from workbench.schedule.action import COMPUTE

WARM_UP = 2
"""Passes before the first recording: they compile, and libraries take their workspaces."""

Key = tuple[Hashable, bool]
"""A key of the caller's, and whether samples are uniform; they are where nothing flows beside the
hidden states, and where blocks take whole bundles."""
Pass = Callable[..., Tensor | Bundle]
"""(kind, module, hidden states, what flows beside them unless samples are uniform) -> output; or
(kind, module, all that flows into a block) -> all that flows out of it."""
NOTHING: Mapping[Hashable, Chain] = MappingProxyType({})
ALIGNED = 512
"""Bytes to which memory of a tensor is aligned, as the allocator aligns it: kernels are chosen by
that, and others round otherwise."""


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
    ends: tuple[Boundary, ...] = ()
    """Boundaries into each block and behind the last, of blocks that take whole bundles."""

    @classmethod
    def alone(
        cls, kind: str, module: nn.Module, parameters: list[nn.Parameter], rows: int,
        ends: tuple[Boundary, ...] = (),
    ) -> Chain:  # fmt: skip
        """A chain of one block."""
        return cls(kinds=(kind,), modules=(module,), parameters=(parameters,), rows=rows, ends=ends)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Alone:
    """A block's forward pass, where it reads its input, and where it leaves its output."""

    graph: torch.cuda.CUDAGraph
    given: Bundle
    output: Bundle
    relayed: list[int | None]
    """For each tensor of the output: its place in the input, where the pass hands it on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recorded:
    """A chain's recordings, where they read, and where they leave what comes out."""

    given: Bundle
    above: Bundle
    again: list[torch.cuda.CUDAGraph]
    back: list[torch.cuda.CUDAGraph]
    grads: list[list[Tensor]]
    output: Bundle
    input_grads: Bundle


@dataclass(frozen=True, kw_only=True, slots=True)
class _FromCheckpoint:
    """Recordings of a block's backward pass that begins at its input, and their places."""

    given: Bundle
    above: Bundle
    graph: torch.cuda.CUDAGraph
    grads: list[Tensor]
    input_grads: Bundle


class Replays:
    """Recorded passes, by keys of the caller's."""

    def __init__(
        self,
        run: Pass,
        boundary: Boundary,
        meter: CudaMeter,
        *,
        checkpointed: Pass | None = None,
        whole: bool = False,
    ) -> None:
        """`run` makes a block's output from its kind, its module and an input with the shapes of
        `boundary`; `checkpointed` likewise, and keeps nothing but the input. The output is of the
        same shape, and parts of the input behind the first one flow through a block as they are;
        where blocks are `whole` they take and make all, and chains say in which shapes."""
        self._run, self._checkpointed, self._meter = run, checkpointed, meter
        self._boundary, self._whole = boundary, whole
        self.stream = stream_pool.take(meter.device)
        """The compute lane's."""
        self._memory: tuple[Tensor, ...] = ()
        """Bytes of inputs, and of gradients of outputs."""
        self._forms = (True,) if whole or len(boundary.parts) == 1 else (False, True)
        """Whether samples are uniform, of the recordings of each pass."""
        self._forward: dict[Key, _Alone] = {}
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
        every = [*forwards.values(), *chains.values(), *checkpoints.values()]
        into = max(_nbytes(self._ends(chain)[0], chain.rows) for chain in every)
        back = max(_nbytes(self._ends(chain)[-1].gradients(), chain.rows) for chain in every)
        self._memory = tuple(self._meter.zeros(size, torch.uint8) for size in (into, back))
        torch.cuda.synchronize(self._meter.device)
        with self._meter, torch.cuda.stream(self.stream):
            for form in self._forms:
                for block in self._of_each_kind(forwards.values()):
                    self._warm_up(block, form)
                for block in self._of_each_kind(chains.values()):
                    self._warm_up(block, form, backward=True)
                for block in self._of_each_kind(checkpoints.values()):
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
        recorded pass, and what it relays is the input's."""
        self._enter(None)
        one = self._forward[key]
        copy_into(one.given, x)
        one.graph.replay()
        each = zip(one.output, one.relayed, strict=True)
        return tuple(own if place is None else x[place] for own, place in each)

    def recompute(self, key: Key, x: Bundle | None, index: int = 0) -> None:
        """The pass of a chain's block with what its backward pass needs. The first one takes the
        chain's input, the others what the one before made."""
        chain = self._chains[key]
        if index == 0:
            self._enter((key, 2 * len(chain.again)))
            copy_into(chain.given, x)
        self._pass(key)
        chain.again[index].replay()

    def output(self, key: Key) -> Bundle:
        """Output of the chain's last block; it is there until the chain's next pass."""
        return self._chains[key].output

    def backward(
        self, key: Key, output_grads: Bundle, index: int = 0
    ) -> tuple[Bundle, list[Tensor]]:
        """The gradients of the chain's input, from its first block, and of a block's parameters;
        they are there until the next recorded pass. The last block takes the output's."""
        chain = self._chains[key]
        if index == len(chain.back) - 1:
            copy_into(chain.above, output_grads)
        self._pass(key)
        chain.back[index].replay()
        return () if index else chain.input_grads, chain.grads[index]

    def from_checkpoint(
        self, key: Key, x: Bundle, output_grads: Bundle
    ) -> tuple[Bundle, list[Tensor]]:
        """The gradients of a block's input and parameters by a backward pass that begins at the
        input; they are there until the next recorded pass."""
        self._enter(None)
        back = self._backs[key]
        copy_into(back.given, x)
        copy_into(back.above, output_grads)
        back.graph.replay()
        return back.input_grads, back.grads

    def forget(self) -> None:
        """Let go of a chain that was begun; the device is done with its passes."""
        self._begun = None

    def let_go(self) -> None:
        """Let go of all recordings, and of what they worked in."""
        torch.cuda.synchronize(self._meter.device)
        self._clear()
        torch.cuda.empty_cache()
        self._meter.set_apart(0)

    def close(self) -> None:
        """Let go of everything; no recording may be running."""
        self._clear()
        stream_pool.give_back({COMPUTE: self.stream})

    def _clear(self) -> None:
        for held in (self._forward, self._chains, self._backs):
            held.clear()
        self._memory = ()

    def _ends(self, chain: Chain) -> tuple[Boundary, ...]:
        return chain.ends or (self._boundary,) * (len(chain.kinds) + 1)

    def _given(self, chain: Chain) -> Bundle:
        return _carved(self._memory[0], self._ends(chain)[0], chain.rows)

    def _above(self, chain: Chain) -> Bundle:
        return _carved(self._memory[1], self._ends(chain)[-1].gradients(), chain.rows)

    def _taken(self, given: Bundle, form: bool) -> Bundle:
        """Parts of an input that `run` takes."""
        return given[: 1 if form and not self._whole else None]

    def _left(self, y: Bundle, given: Bundle) -> Bundle:
        """Where an output is after a recorded pass."""
        return (*map(there, y), *(() if self._whole else given[1:]))

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
        into, out = self._ends(chain)
        given = self._taken(self._given(chain), form)
        for _ in range(WARM_UP):
            if backward:
                x, y = self._differentiated(kind, module, given, into, checkpointed)
                _gradients(x, y, parameters, self._above(chain), out)
                del x, y
            else:
                with torch.no_grad():
                    self._run(kind, module, *given)

    def _alone(self, chain: Chain, form: bool) -> _Alone:
        given = self._given(chain)
        x = self._taken(given, form)
        with recording(self._pool) as graph, torch.no_grad():
            y = bundled(self._run(chain.kinds[0], chain.modules[0], *x))
        relayed = [next((n for n, own in enumerate(x) if _is(t, own)), None) for t in y]
        relayed += [] if self._whole else range(1, len(given))
        return _Alone(graph=graph, given=given, output=self._left(y, given), relayed=relayed)

    def _chain(self, chain: Chain, form: bool) -> _Recorded:
        given, ends, passes = self._given(chain), self._ends(chain), []
        x, again, back, grads = self._taken(given, form), [], [], []
        for kind, module, into in zip(chain.kinds, chain.modules, ends, strict=False):
            with recording(self._pool) as graph:
                passes.append(self._differentiated(kind, module, x, into))
            again.append(graph)
            x = passes[-1][1] + (() if self._whole else x[1:])
        output = self._left(passes[-1][1], given)
        del x
        above = first = self._above(chain)
        for parameters, out in zip(reversed(chain.parameters), reversed(ends), strict=False):
            with recording(self._pool) as graph:
                above, found = _gradients(*passes.pop(), parameters, above, out)
            back.append(graph)
            grads.append([there(grad) for grad in found])
            del found
        back.reverse()
        grads.reverse()
        return _Recorded(
            given=given, above=first, again=again, back=back, grads=grads, output=output,
            input_grads=tuple(map(there, above)),
        )  # fmt: skip

    def _back(self, chain: Chain, form: bool) -> _FromCheckpoint:
        """The forward pass is launched: its backward pass reads nothing of it but the input, which
        profiles see (profile/variants.py)."""
        (kind,), (module,), (parameters,) = chain.kinds, chain.modules, chain.parameters
        given, first, (into, out) = self._given(chain), self._above(chain), self._ends(chain)
        x, y = self._differentiated(kind, module, self._taken(given, form), into, True)
        with recording(self._pool) as graph:
            above, found = _gradients(x, y, parameters, first, out)
        return _FromCheckpoint(
            given=given, above=first, graph=graph, grads=[there(grad) for grad in found],
            input_grads=tuple(map(there, above)),
        )  # fmt: skip

    def _differentiated(
        self, kind: str, module: nn.Module, given: Bundle, into: Boundary, again: bool = False
    ) -> tuple[Bundle, Bundle]:
        """Inputs and outputs of a pass."""
        run = self._checkpointed if again else self._run
        each = zip(given, into.differentiable, strict=False)
        x = tuple(t.detach().requires_grad_(wanted) for t, wanted in each)
        with torch.enable_grad():
            return x, bundled(run(kind, module, *x))

    def _of_each_kind(self, chains: Iterable[Chain]) -> list[Chain]:
        """A block of each kind and number of samples among some chains, alone."""
        found = {}
        for chain in chains:
            blocks = zip(chain.kinds, chain.modules, chain.parameters, strict=True)
            for block, ends in zip(blocks, pairwise(self._ends(chain)), strict=True):
                found[block[0], chain.rows] = Chain.alone(*block, chain.rows, ends)
        return [*found.values()]


def _gradients(
    x: Bundle, y: Bundle, parameters: list[nn.Parameter], output_grads: Bundle, out: Boundary
) -> tuple[Bundle, tuple[Tensor, ...]]:
    """Gradients of inputs that have some, and of parameters."""
    inputs = [t for t in x if t.requires_grad]
    through = [*inputs, *parameters]
    back = [t for t, wanted in zip(y, out.differentiable, strict=False) if wanted]
    ends = [(t, g) for t, g in zip(back, output_grads, strict=True) if t.requires_grad]
    if not ends:  # nothing is learned below
        found = tuple(map(torch.zeros_like, through))
    else:
        found = torch.autograd.grad(
            [t for t, _ in ends], through, [g for _, g in ends], materialize_grads=True
        )
    return found[: len(inputs)], found[len(inputs) :]


def _is(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one, where it lies and how."""
    alike = one.shape == other.shape and one.stride() == other.stride()
    return alike and one.dtype == other.dtype and one.data_ptr() == other.data_ptr()


def _nbytes(boundary: Boundary, rows: int) -> int:
    """Bytes of the tensors of so many samples, each aligned."""
    shapes = [part.full_shape(rows) for part in boundary.parts]
    each = zip(shapes, boundary.dtypes, strict=True)
    return sum(-(-prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED for shape, dtype in each)


def _carved(memory: Tensor, boundary: Boundary, rows: int) -> Bundle:
    """The tensors of so many samples in flat bytes, each aligned."""
    found, at = [], 0
    for part, dtype in zip(boundary.parts, boundary.dtypes, strict=True):
        nbytes = prod(shape := part.full_shape(rows)) * dtype.itemsize
        found.append(memory[at : at + nbytes].view(dtype).view(shape))
        at += -(-nbytes // ALIGNED) * ALIGNED
    return tuple(found)
