"""What trains on several ranks, and which settings of the grid it takes.

A system is a row of `SYSTEMS`: where weights are while others compute, how messages travel, the
values of the axes that it takes, and a function that trains a cell. A new one adds its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baselines.swapping.division import divided
from tests.exactness.pairs import covering
from tests.exactness.trained import Trained
from tests.methods import double, masked, plain, torchs
from tests.methods.harness import Silent
from tests.methods.rank_server import process
from tests.varuna import net
from tests.varuna.cases import around
from tests.varuna.workers import Workers
from workbench.core.division import DP, PP, packs_of
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.harmony.packs import Packs
from workbench.methods.harmony.program import build
from workbench.methods.harmony.visits import Rings
from workbench.methods.pipeline.definition import Pipeline
from workbench.methods.pipeline.orders import ORDERS, lists
from workbench.methods.pipeline.places import Places
from workbench.methods.pipeline.program import Program
from workbench.profile.unit_costs import ProfiledSizes
from workbench.runtime.checkpoint import checkpoint
from workbench.runtime.memory.traffic import planned_parts
from workbench.schedule import validate
from workbench.schedule.build.ring import aligned
from workbench.schedule.schedule import Schedule
from workbench.training.rank_processes import RankTraining

TIED = ModelSpec(layers=4, hidden=16, heads=2, seq=8, vocab=256, dropout=0.1, tied=True)
MASKED = ModelSpec(
    family="tests.methods.masked:net", layers=4, hidden=18, heads=6, vocab=3, tied=False
)
UNITS = TIED.layers + 2
STEPS, CLIP = 3, 0.5
OWN = {"own 0 1 0": (0, 1, 0), "own 1 0 0": (1, 0, 0), "own 1 2 0": (1, 2, 0)}
"""Orders of one's own: each position does all its forward passes first. Position of each stage."""
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
ONE = "one for the device"
THREADS = {"each lane": "", "each lane, late": "delays", ONE: "together"}
"""Threads of a rank -> how a rank of tests is told of them (rank_driver.py)."""
AXES = {
    "order": (*ORDERS, *OWN, PP, DP),
    "ranks": (2, 3, 4, 1),
    "replicas": (1, 2),
    "stages": ("even", "uneven", "layers"),
    "micros": (1, 3, 4),
    "batch": (11, 12, 5),
    "activations": ("keep", "recompute", "checkpoint", "stash"),
    "precision": ("fp64", "fp32", "bf16"),
    "clip": ("waits", "guesses", "never"),
    "model": ("tied", "masked"),
    "thread": (*THREADS,),
}
"""Ranks are positions of a pipeline. `even` stages have as many layers as possible alike, `uneven`
ones have a single layer first, `layers` are packs of one each. A batch of 11 divides into nothing,
one of 5 has fewer rows than micro-batches. The tied model draws dropout and shares a weight between
its ends; of the masked one's labels some do not count."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A training to compare: a value of each axis."""

    system: str
    order: str
    ranks: int
    replicas: int
    stages: str
    micros: int
    batch: int
    activations: str
    precision: str
    clip: str
    model: str
    thread: str

    @property
    def clipped(self) -> bool:
        return self.clip != "never"

    @property
    def rows(self) -> int:
        """Samples of the largest replica."""
        return -(-self.batch // self.replicas)

    @property
    def processes(self) -> int:
        return self.ranks * self.replicas

    @property
    def spec(self) -> RunSpec:
        """The training, where a run's ranks do it."""
        model, text = (MASKED, "stdlib") if self.model == "masked" else (TIED, plain.__file__)
        waits = "wait" if self.clip == "waits" else "speculate"
        more = {"dtype": "bf16", "eps": 1e-5} if self.precision == "bf16" else {}
        return plain.spec_for(
            model=model, text=text, batch=self.batch, steps=STEPS, lr_decay_steps=20,
            clip=CLIP if self.clipped else None, clipping=waits, ranks=self.processes, **more,
        )  # fmt: skip

    @property
    def sizes(self) -> ProfiledSizes:
        """Bytes of the model's layers, made up."""
        profile = plain.made_up_profile(self.spec.with_(microbatches=self.batch))
        made = double.Doubled if self.precision == "fp64" else ProfiledSizes
        tied = {UNITS - 1: (0, TIED.vocab * TIED.hidden)} if self.model == "tied" else {}
        return made({1: profile}, tied=tied)

    def stages_of(self, number: int) -> tuple[range, ...]:
        """Layers of so many stages."""
        if self.stages == "uneven":
            return (range(1), *_even(number - 1, 1))
        return _even(number, 0)

    @property
    def packs(self) -> tuple[range, ...]:
        """Layers of packs."""
        return packs_of({"even": [2] * 3, "uneven": [3, 2, 1], "layers": [1] * 6}[self.stages])


def _even(number: int, first: int) -> tuple[range, ...]:
    cuts = [first + (UNITS - first) * stage // number for stage in range(number + 1)]
    return tuple(map(range, cuts, cuts[1:]))


@dataclass(frozen=True, kw_only=True)
class System:
    """A way of training on ranks."""

    trains: Callable[[Cell, Path], Trained]
    plain: Callable[[Cell], Trained]
    grids: Sequence[Mapping[str, tuple]]
    """Values that it takes together, of the axes of which it does not take all."""
    near: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """As `NEAR`, where it is not that near."""


# -- ranks of a run: layers in memory that processes of one host share, messages by its inboxes


def by_ranks(cell: Cell, schedule: Schedule, folder: Path) -> Trained:
    """A run of a schedule."""
    validate(schedule)
    how = THREADS[cell.thread]
    if cell.precision == "fp64":
        how = f"fp64 {how}".strip()
    with ExitStack() as stack:
        if cell.precision == "fp64":
            double.use(stack.enter_context(pytest.MonkeyPatch.context()))
        crew = RankTraining(cell.spec, schedule, folder, device="cpu", process=process(how))
        stack.enter_context(closing(crew)).run(Silent())
        for part, nbytes in planned_parts(schedule, cell.batch).items():
            moved = sum(result["moved_parts"].get(part, 0) for result in crew.results())
            assert moved == nbytes * STEPS, part
        weights = checkpoint.parameters(crew.model, crew.states, crew.flats)
        norms = crew.history.grad_norms if cell.clipped else []
        return Trained(crew.history.losses, weights, norms)


def line(cell: Cell, *, visit: bool) -> Schedule:
    """A pipeline of layers that stay on their ranks, or visit them from the host."""
    if cell.order == DP:
        stages, size = (range(UNITS),) * cell.ranks, -(-cell.batch // cell.micros)
        own = (1, *[0] * (cell.ranks - 1))
        made = divided(DP, cell.batch, size, stages, own=own, shared=3, clipped=cell.clipped)
        return Program(made, cell.sizes).schedule()
    positions = OWN.get(cell.order, ())
    if positions:
        stages = packs_of([1, 3, 2])
        passes = [[*around(rank, cell.ranks, cell.micros, positions)] for rank in range(cell.ranks)]
    else:
        chunks = 2 if ORDERS[cell.order].chunked else 1
        stages = cell.stages_of(cell.ranks * chunks)
        passes = lists(cell.order, cell.ranks, cell.micros, chunks)
    held = [
        [unit for number, stage in enumerate(stages) for unit in stage
         if (positions[number] if positions else number % cell.ranks) == rank]
        for rank in range(cell.ranks)
    ]  # fmt: skip
    return Program(
        Pipeline(
            method=cell.order, passes=passes, stages=stages, positions=positions,
            micro_size=-(-cell.rows // cell.micros), samples=cell.rows, replicas=cell.replicas,
            activations=cell.activations, clipped=cell.clipped,
            places=[
                Places(units=own, own=rank % 2, shared=2 - cell.micros // 4)
                for rank, own in enumerate(held)
            ]
            if visit else (),
        ),
        cell.sizes,
    ).schedule()  # fmt: skip


def packs(cell: Cell, *, stay: bool) -> Schedule:
    """Packs of layers that visit the ranks in turn, or of which all that can stay."""
    cut, size = cell.packs, -(-cell.batch // cell.micros)
    before = cut[:-1] if stay else packs_of([1] * cut[-1].start)
    chosen = Packs(
        mode=cell.order, ranks=cell.ranks, minibatch=cell.batch, forward_size=size,
        backward_size=max(1, size - 1), forward=before, backward=cut, mirrored=stay,
        resident=frozenset(range(1, UNITS - 1) if stay else ()),
    )  # fmt: skip
    largest = max(sum(aligned(cell.sizes.visit_bytes(u)) for u in pack) for pack in (*before, *cut))
    rings = [Rings(weights=2 * largest, gradients=largest)] * cell.ranks
    guesses = cell.clip == "guesses"
    return build(chosen, cell.sizes, rings=rings, clipped=cell.clipped, guesses=guesses)


def plain_ranks(cell: Cell) -> Trained:
    """Torch's loop over the whole model."""
    return _plain(cell.spec.with_(ranks=1, clipping="wait"), cell.precision)


@cache
def _plain(spec: RunSpec, precision: str) -> Trained:
    dtype, norms = DTYPES[precision], []
    if spec.model == MASKED:
        torch.manual_seed(spec.seed)
        module = masked.net(spec.model)[0].to(dtype)
        losses, norms = torchs.train(spec, module)
        return Trained(losses, dict(module.named_parameters()), norms)
    with pytest.MonkeyPatch.context() as patch:
        if precision == "fp64":
            double.use(patch)
        return Trained(*plain.train(spec, dtype, norms), norms)


# -- ranks of a script: stages that stay, processes of any hosts, messages over gloo


def script(cell: Cell, folder: Path) -> Trained:
    """A pipeline in a script of somebody's own, of the module of `tests/varuna/net.py`."""
    chunks = 2 if cell.order == "interleaved" else 1
    stages = packs_of([1, 3, 2]) if cell.order in OWN else cell.stages_of(cell.ranks * chunks)
    case = {
        "stages": cell.ranks, "batch": cell.batch, "chunk": -(-cell.rows // cell.micros),
        "cut": " ".join(str(len(stage)) for stage in stages), "blocks": UNITS - 1, "steps": STEPS,
        "clip": CLIP if cell.clipped else None,
    }  # fmt: skip
    if cell.order in OWN:
        what, more = "train_around", {"positions": OWN[cell.order]}
        more["again"] = cell.activations == "recompute"
    else:
        what, more = "train", {"order": cell.order, "replicas": cell.replicas}
        more |= {"double": cell.precision == "fp64", "bf16": cell.precision == "bf16"}
        more["optimizer"] = _optimizer(cell.precision)
        more |= {
            "keep": {"activations": "keep"},
            "stash": {"stash_on": "host"},
            "recompute": {"stash": 1} if cell.order == "varuna" else {},
        }[cell.activations]
        more["late"] = 0.002 if cell.thread.endswith("late") else 0.0
    with Workers() as workers:
        told = workers.run(what, **case, **more)
    weights: dict[str, Tensor] = {}
    for one in told:
        assert "losses" in one, one
        assert (one["losses"], one["norms"]) == (told[0]["losses"], told[0]["norms"])
        for name, values in one["weights"].items():
            value = torch.tensor(values, dtype=torch.float64)
            assert torch.equal(weights.setdefault(name, value), value), name
    return Trained([*told[0]["losses"], told[0]["evaluated"]], weights, told[0]["norms"])


def _optimizer(precision: str) -> str:
    """AdamW makes whole steps of gradients that are rounding."""
    return "mild" if precision == "bf16" else "adamw"


def plain_script(cell: Cell) -> Trained:
    """Torch's loop over that module."""
    return _plain_script(cell.batch, cell.clipped, cell.precision)


@cache
def _plain_script(batch: int, clipped: bool, precision: str) -> Trained:
    norms: list[float] = []
    torch.set_default_dtype(torch.float64 if precision == "fp64" else torch.float32)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            optimize = getattr(net, _optimizer(precision))
            losses, weights, evaluated = net.plain(
                batch, STEPS, CLIP if clipped else None, optimize, norms=norms, blocks=UNITS - 1
            )
    finally:
        torch.set_default_dtype(torch.float32)
    return Trained([*losses, evaluated], weights, norms)


# -- the table


def divides(cell: Cell) -> bool:
    """Whether there are judges, stages and micro-batches of such a cell."""
    if cell.model == "masked" and (cell.precision == "bf16" or cell.thread == ONE):
        return False  # its judge rounds nothing; its labels are looked at on the processor
    if cell.ranks == 1 and cell.stages == "uneven":
        return cell.order in (PP, DP)
    if cell.micros > cell.rows:
        return False
    if cell.order != "interleaved":
        return True
    micros = -(-cell.rows // -(-cell.rows // cell.micros))
    return 2 * cell.ranks <= UNITS and not (cell.micros % cell.ranks or micros % cell.ranks)


LINES = {"stages": ("even", "uneven"), "clip": ("waits", "never")}
"""Pipelines have as many stages as ranks, or twice as many, and guess nothing."""
ALONE = {"replicas": (1,)}
AROUND = ALONE | {"order": ("own 0 1 0", "own 1 0 0"), "ranks": (2,), "stages": ("uneven",)}
PACKS = ALONE | {"activations": ("recompute",)}
AGAIN = ("keep", "recompute", "checkpoint")
SCRIPT = {"model": ("tied",), "thread": ("each lane", "each lane, late")}
SYSTEMS = {
    "packs that visit": System(
        trains=lambda cell, folder: by_ranks(cell, packs(cell, stay=False), folder),
        plain=plain_ranks,
        grids=[PACKS | {"order": (PP, DP)}],
    ),
    "packs that stay": System(
        trains=lambda cell, folder: by_ranks(cell, packs(cell, stay=True), folder),
        plain=plain_ranks,
        grids=[PACKS | {"order": (PP,)}],
    ),
    "layers that visit": System(
        trains=lambda cell, folder: by_ranks(cell, line(cell, visit=True), folder),
        plain=plain_ranks,
        grids=[
            LINES | ALONE | {"order": ("gpipe", "1f1b")},
            LINES | ALONE | {"order": ("zb-h1",), "activations": ("keep", "recompute", "stash")},
            LINES | ALONE | {"order": (DP,), "activations": ("stash",), "stages": ("even",)},
            LINES | AROUND,
        ],
    ),
    "layers that stay": System(
        trains=lambda cell, folder: by_ranks(cell, line(cell, visit=False), folder),
        plain=plain_ranks,
        grids=[
            LINES | {"order": ("gpipe", "1f1b", "interleaved"), "activations":
                     (*AGAIN, "stash")},
            LINES | {"order": ("zb-h1",), "activations": ("keep", "recompute")},
            LINES | {"order": ("varuna",), "activations": ("recompute",)},
            LINES | AROUND | {"activations": AGAIN},
        ],
    ),
    "stages over gloo": System(
        trains=script,
        plain=plain_script,
        near={"bf16": (2e-2, 2e-2)},  # of torch's autocast, which rounds elsewhere
        grids=[
            LINES | SCRIPT | {"order": ("gpipe", "1f1b", "interleaved"), "activations":
                              ("keep", "recompute", "stash"), "precision": ("fp64", "fp32")},
            LINES | SCRIPT | {"order": ("varuna",), "activations": ("recompute", "stash"),
                              "precision": ("fp64", "fp32")},
            LINES | SCRIPT | {"order": ("gpipe", "1f1b", "interleaved"), "activations":
                              ("keep", "recompute", "stash"), "precision": ("bf16",),
                              "clip": ("waits",)},
            LINES | SCRIPT | AROUND | {"activations": AGAIN[:2], "precision": ("fp64",),
                                       "thread": ("each lane",)},
        ],
    ),
}  # fmt: skip
"""A new system adds its row, and its values to `AXES` where it has some of its own."""
LENT = [
    Cell(
        system="layers that stay", order=order, ranks=ranks, replicas=replicas, stages="uneven",
        micros=3, batch=12, activations="keep", precision="fp64", clip="waits", model="tied",
        thread="each lane, late",
    )
    for order, ranks, replicas in (("own 1 0 0", 2, 1), ("own 1 2 0", 3, 1), ("own 1 2 0", 3, 2))
]  # fmt: skip
"""Pairs do not ask for these: the norm is taken on the rank of the head, which borrows weights of
the embedding on another rank."""
CELLS = [
    Cell(**one)
    for one in covering(
        [{"system": (name,), **AXES, **grid} for name, own in SYSTEMS.items()
         for grid in own.grids],
        lambda one: divides(Cell(**one)),
        lambda one: 1 + one["ranks"] * one["replicas"],
        seed=43,
    )
] + LENT  # fmt: skip
