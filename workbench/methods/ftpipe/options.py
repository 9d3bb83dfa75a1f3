"""Options of FTPipe: the stages, their devices, and the order of their passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from workbench.core.model_spec import ENGINE
from workbench.core.options import Options as Common
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.orders import ORDERS, SYNCHRONOUS, depths
from workbench.methods.options import numbers_of_units

EXAMPLE, MAP = "5 4 4 3", "0 1 0 1"


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """FTPipe's options."""

    stage_order: str = "async-1f1b"
    """Order of passes: ``async-1f1b``, ``pipedream`` (equal passes), ``virtual-stages-1f1b`` with a
    `supremum`; or, as plain training, ``seq``, ``gpipe-lifo`` and ``sync-1f1b``."""
    cut: str = ""
    """Units of each stage, the embedding and the head among them, as in ``5 4 4 3``; where none are
    given, the `partitioner` finds stages and their ranks."""
    map: str = ""
    """Rank of each stage of the `cut`, as in ``0 1 0 1``; where none are given, stages are dealt in
    turn."""
    process_per_stage: bool = False
    """Whether each stage has a process of its own, as published, in place of each rank; processes
    of one rank share its device and its memory. Losses are equal."""
    partitioner: Literal["mpipe", "pipedream", "exact", "acyclic", "metis"] = "mpipe"
    """Finder of stages: ``mpipe`` is FTPipe's own, whose ranks may have stages that are no
    neighbours; with ``pipedream`` and ``acyclic`` each rank has one."""
    partition: str = ""
    """Name of a registered partition (``workbench partition --list``), whose cut, or calls, and map
    are taken."""
    supremum: int = 0
    """Updates that a first stage's weights may lack, and one, with ``virtual-stages-1f1b``; 0 is
    the number of ranks."""
    optimizer: Literal["adamw", "adam", "sgd", "sgd-tf", "adafactor"] = "adamw"
    """Optimizer of each stage, with the spec's rate and decay; ``adafactor`` is torch's, ``sgd-tf``
    has TensorFlow's velocity, with the rate in it. Adam and SGD add the decay to gradients."""
    momentum: float = 0.0
    """SGD's."""
    nesterov: bool = False
    """Whether SGD looks one step of its momentum ahead."""
    stage_clip: Literal["local", "local-prop"] = "local"
    """Limit of the norm of a stage's own gradients in asynchronous orders: `clip`, or a part of it
    as large as the stage's part of all parameters."""
    weight_stashing: bool = False
    """Whether a backward pass reads the weights that its forward pass read; else the newest."""
    prediction: Literal["none", "msnag", "aggmsnag", "nag"] = "none"
    """Weights that forward passes read in place of stale ones: those that the optimizer would make
    by the backward pass, with gradients of zero (``msnag``), or with those that have been added up
    (``aggmsnag``); ``nag`` is msnag that looks one step ahead where no update is lacking."""
    gap_aware: bool = False
    """Whether gradients are divided by how far the weights have moved since their forward pass, in
    steps of the usual size; with `weight_stashing`, and 1 micro-batch an update."""

    checkpointed: ClassVar[bool] = True
    tries_parts: ClassVar[bool] = False
    uneven: ClassVar[bool] = True
    calls: ClassVar[bool] = True
    synonyms: ClassVar[Mapping[str, str]] = {"order": "stage_order"}

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers_of_units("cut", self.cut or "auto", EXAMPLE)

    @property
    def sizes(self) -> list[int]:
        """Units of each stage, where the user gave them; else empty."""
        return numbers_of_units("cut", self.cut or "auto", EXAMPLE)

    def settled(self, spec: RunSpec, results: Path) -> dict[str, Any]:
        """Stages and map of the registered partition, where one is named."""
        if not self.partition:
            return {}
        from workbench.partition.registered import read  # each command has the options

        return {"partition": "", **read(results, self.partition).stages_for(spec.model, spec.ranks)}

    def positions(self, stages: int, ranks: int) -> list[int]:
        """Rank of each stage. Raises ValueError for a map of other stages or ranks."""
        if not self.map:
            return [stage % ranks for stage in range(stages)]
        words = self.map.split()
        found = [int(word) if word.isdecimal() else ranks for word in words]
        if len(found) != stages or sorted({*found}) != list(range(ranks)):
            raise ValueError(
                f"map is {self.map!r}; give a rank for each of {stages} stages, and every rank of "
                f"0 to {ranks - 1} at least one, such as {MAP!r}"
            )
        return found

    def processes(self, stages: int, ranks: int) -> list[int]:
        """Process of each stage. Raises ValueError as `positions`."""
        positions = self.positions(stages, ranks)
        return [*range(stages)] if self.process_per_stage else positions

    def devices(self, stages: int, ranks: int) -> list[int]:
        """Device of each process."""
        pairs = zip(self.processes(stages, ranks), self.positions(stages, ranks), strict=True)
        return [device for _, device in sorted({*pairs})]

    def depths(self, stages: int, ranks: int) -> list[int]:
        """Micro-batches of each stage between their forward and backward passes."""
        supremum = self.supremum or ranks
        return depths(stages, self.stage_order, supremum=supremum)

    @property
    def state_values(self) -> float:
        """Values that the optimizer keeps of each parameter; of Adafactor, at most, for matrices
        of a width above 128."""
        momentum = float(self.momentum > 0)
        return {"adamw": 2.0, "adam": 2.0, "adafactor": 1 / 64}.get(self.optimizer, momentum)

    @property
    def synchronous(self) -> bool:
        """Whether the pipeline drains with each step, and nothing is stale."""
        return self.stage_order in SYNCHRONOUS

    def check(self, spec: RunSpec) -> None:
        super().check(spec)
        if self.stage_order not in ORDERS:
            known = ", ".join(ORDERS)
            raise ValueError(f"stage_order is {self.stage_order!r}; give one of {known}")
        if self.supremum < 0:
            raise ValueError(
                f"supremum is {self.supremum}; it must be 1 or more, or 0 for the number of ranks"
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; it must be at least 0, below 1")
        if self.momentum and not self.optimizer.startswith("sgd"):
            raise ValueError(
                f"momentum is {self.momentum}; {self.optimizer} has none of that name: leave it at "
                "0, or give the optimizer sgd or sgd-tf"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov is true without momentum; give a momentum such as 0.9")
        if self.stage_clip != "local" and (self.synchronous or spec.clip is None):
            raise ValueError(
                f"stage_clip is {self.stage_clip!r}; it needs a clip and an asynchronous order: "
                f"clip is {spec.clip}, stage_order {self.stage_order}"
            )
        if spec.batch < spec.microbatches:
            raise ValueError(
                f"a batch of {spec.batch} has no row for each of {spec.microbatches} micro-batches"
            )
        if spec.activations == "host":
            raise ValueError(
                "activations is 'host'; ftpipe keeps inputs on the devices: use recompute or keep"
            )
        self._check_weights(spec)
        if spec.model.family.startswith(ENGINE) and self.process_per_stage:
            raise ValueError(
                "process_per_stage is true; processes of a loop of one's own are torchrun's: start "
                "one a stage, and leave it out"
            )
        if spec.model.family.startswith(ENGINE):  # a loop of one's own knows its processes later
            return
        if self.partition and (self.cut or self.map):
            raise ValueError(
                f"partition is {self.partition!r}, which has a cut and a map; give none beside it"
            )
        if self.map and not self.sizes:
            raise ValueError(f"map is {self.map!r} without a cut; give both, or neither")
        if self.sizes:
            self.positions(len(self.sizes), spec.ranks)

    def _check_weights(self, spec: RunSpec) -> None:
        """Raise ValueError for weights of passes that cannot be."""
        predicts, kept = self.prediction != "none", spec.activations == "keep"
        told = "gap_aware" if self.gap_aware else f"prediction {self.prediction!r}"
        if self.synchronous and (self.weight_stashing or predicts or self.gap_aware):
            raise ValueError(
                f"stage_order is {self.stage_order!r}, which drains with each step: no weights are "
                "stale; leave weight_stashing, prediction and gap_aware off"
            )
        if (predicts or self.gap_aware) and (self.optimizer == "adafactor" or self.nesterov):
            raise ValueError(
                f"{told} with {'nesterov' if self.nesterov else self.optimizer}, whose steps are "
                "not known; use adamw, adam, or sgd and sgd-tf with plain momentum"
            )
        if self.gap_aware and (spec.microbatches > 1 or not self.weight_stashing):
            raise ValueError(
                f"gap_aware with {spec.microbatches} micro-batches an update, weight_stashing "
                f"{self.weight_stashing}: the gap is that of one pass, from the weights that it "
                "read; give 1 micro-batch and weight_stashing"
            )
        if predicts and kept and not self.weight_stashing:
            raise ValueError(
                f"{told} with kept activations: backward passes would read other weights; give "
                "weight_stashing, or recompute"
            )
        if kept and spec.dtype != "fp32" and not (self.weight_stashing or self.synchronous):
            raise ValueError(
                f"activations are kept in {spec.dtype} without weight_stashing: graphs keep 16-bit "
                "weights that no schedule declares; give weight_stashing, recompute, or fp32"
            )
