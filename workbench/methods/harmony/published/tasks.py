"""Tasks that the runtime of Harmony repeats every iteration, and the flows between them.

The task graph of Harmony (VLDB 2022), as in the published artifact, commit 5fd838f.

A task runs one pack on one GPU for all micro-batches of the minibatch before the GPU turns to its
next (input-batch grouping), so weights come in once per task. Forward tasks come first, in layer
order; then, from the last pack to the first, a backward task that recomputes from the stashed input
of its pack, followed at once by its update on the host (jit-update). The last backward pack has no
forward task: its recomputation is its forward (jit-compute).

Every input and output of a task names its *medium*, the channel it takes, and the task at the other
end, so that the graph can be checked, estimated, counted and run without knowing how it was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from workbench.methods.harmony.published.microbatches import shares, split
from workbench.methods.harmony.published.packing import Packs


class Mode(StrEnum):
    DP = "DP"
    """Replicas: every GPU runs all tasks on its share of the minibatch."""
    PP = "PP"
    """Tasks dealt to the GPUs in turn, around and around."""


class TaskKind(StrEnum):
    FORWARD = "F"
    BACKWARD = "B"
    UPDATE = "U"


class What(StrEnum):
    X = "X"
    """Activations entering a layer; also the stashed ones."""
    DX = "dX"
    """Gradients of the activations entering a layer."""
    TARGET = "T"
    WEIGHTS = "W"
    """Weights and buffers."""
    GRADIENTS = "dW"
    """Gradients of the weights, and buffers."""
    STATES = "K"


class Medium(StrEnum):
    DATA = "data"
    """The minibatch, in host memory."""
    P2P = "p2p"
    """From GPU to GPU."""
    MESSAGE = "message"
    """Swapped out, passed on through host memory, perhaps in other micro-batches, swapped in."""
    SWAP = "swap"
    """Swapped out and in again by the same GPU."""
    SHARED = "shared"
    """The model's weights and states in host memory, common to all processes."""
    PINNED = "pinned"
    """Stays on the GPU from one task to the other."""
    LOCAL = "local"
    """A host buffer of one process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """One input or output of a task."""

    what: What
    medium: Medium
    layers: range
    """Of weights, gradients and states: whose; of activations: the one layer they enter."""
    peer: int | None = None
    """Index of the task at the other end; None where that is the host's copy or the data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    index: int
    kind: TaskKind
    pack: range
    rank: int
    """The GPU, or for updates the process of that GPU, which computes on the host."""
    microbatches: tuple[int, ...] = ()
    inputs: tuple[Flow, ...] = ()
    outputs: tuple[Flow, ...] = ()

    @property
    def device(self) -> str:
        return f"{'cpu' if self.kind is TaskKind.UPDATE else 'gpu'}:{self.rank}"

    @property
    def name(self) -> str:
        """Kind, layers and rank: `B[4:8]@2`."""
        return f"{self.kind}[{self.pack.start}:{self.pack.stop}]@{self.rank}"

    def flows_in(self, what: What) -> list[Flow]:
        return [flow for flow in self.inputs if flow.what is what]

    def flows_out(self, what: What) -> list[Flow]:
        return [flow for flow in self.outputs if flow.what is what]


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Choice of the search, for a minibatch on some GPUs: sizes and packs of both passes."""

    mode: Mode
    gpus: int
    minibatch: int
    u_forward: int
    forward: Packs
    """Without the layers of the last backward pack; empty where that is the whole model."""
    u_backward: int
    backward: Packs
    """In layer order."""

    def shares(self) -> tuple[int, ...]:
        """Samples per replica: one per GPU in DP, all of them in PP."""
        if self.mode is Mode.PP:
            return (self.minibatch,)
        return shares(self.minibatch, self.gpus)

    def microbatches(self, kind: TaskKind, samples: int) -> tuple[int, ...]:
        return split(samples, self.u_forward if kind is TaskKind.FORWARD else self.u_backward)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskGraph:
    mode: Mode
    gpus: int
    minibatch: int
    layers: int
    tasks: tuple[Task, ...]
    """Task i has index i. The tasks of a rank run in this order."""

    def of_rank(self, rank: int) -> list[Task]:
        return [task for task in self.tasks if task.rank == rank]

    @property
    def used_gpus(self) -> int:
        """GPUs that have any task; they share the host's link."""
        return len({task.rank for task in self.tasks})

    @property
    def local(self) -> bool:
        """Whether all activations stay with one GPU: data parallel, or only one GPU to use."""
        return self.mode is Mode.DP or self.gpus == 1
