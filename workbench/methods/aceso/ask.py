"""A question to the planner: which model, on which devices, by which profiles; and its space."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workbench.methods.aceso.corrected import Corrected
from workbench.methods.aceso.costs import NEVER, Costs
from workbench.methods.aceso.database import FORWARD, Database, read_database
from workbench.methods.aceso.plan import Plan, Subject
from workbench.methods.aceso.space import MOST_STAGES, Cluster, Space
from workbench.model.operators import published_sizes

MICROS = {"gpt": (1, 2, 4, 8), "t5": (1, 2, 4, 8), "resnet": (16, 32, 48, 64)}
"""Samples of micro-batches that the published scripts try."""
MOST_GPUS = 1024
LENGTHS = frozenset({
    "seq_length", "max_position_embeddings", "encoder_seq_length", "decoder_seq_length",
})  # fmt: skip
"""Numbers of a plan that flags may set apart from its published size."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A model and a cluster."""

    subject: Subject
    cluster: Cluster
    database: str | Path | Database
    micros: tuple[int, ...] = ()
    """Empty: the published ones of the model."""
    most_tp: int = 0
    """0: all devices of a node."""
    margin: float = 0.0
    """MB that recomputation leaves free."""
    cost: Literal["published", "ours"] = "published"
    """The cost model: the published one, or the one that corrects it (corrected.py)."""

    def __post_init__(self) -> None:
        cluster = self.cluster
        for name, value in (("--num-nodes", cluster.nodes), ("--num-gpus-per-node",
                             cluster.per_node)):  # fmt: skip
            if not 1 <= value <= MOST_GPUS:
                raise ValueError(f"{name} is {value}; it must be from 1 to {MOST_GPUS}")
        if not 0 < cluster.memory < 1e9:
            raise ValueError(f"--memory-limit is {cluster.memory:g}; it must be MB, over 0")
        if not 0 <= self.margin < cluster.memory:
            raise ValueError(f"--peak-mem-in-backward is {self.margin:g}; it must be MB, from 0 to "
                             f"below the limit of {cluster.memory:g}")  # fmt: skip
        for micro in self.micros:
            if not 1 <= micro <= self.subject.batch:
                raise ValueError(f"--micro-batch-size has {micro}; it must be from 1 to the batch "
                                 f"of {self.subject.batch}")  # fmt: skip
        if self.most_tp < 0:
            raise ValueError(f"--max-tp is {self.most_tp}; it must be 1 or more")

    def costs(self) -> Costs:
        """Costs of the model's stages. Raises ValueError for a database that does not serve."""
        operators = self.subject.operators()
        subject, cluster = self.subject, self.cluster
        database = self.database
        if not isinstance(database, Database):
            database = read_database(database, subject.name, operators)
        common = {"half": subject.half, "per_node": cluster.per_node}
        if self.cost == "published":
            return Costs(operators, database, **common)
        return Corrected(operators, database, **common, gpus=cluster.gpus, batch=subject.batch)

    def space(self) -> Space:
        """The plans that may be made. Raises ValueError."""
        costs, subject = self.costs(), self.subject
        known = costs.database.samples
        micros = self.micros or MICROS[subject.model]
        micros = tuple(m for m in micros if m in known and m <= subject.batch)
        if not micros:
            raise ValueError(f"no micro-batch of {', '.join(map(str, self.micros))} samples is "
                             f"profiled; {costs.database.place} has {known}")  # fmt: skip
        return Space(
            subject, self.cluster, costs, micros=micros, margin=self.margin,
            most_tp=self.most_tp or self.cluster.per_node,
        )  # fmt: skip

    def stages(self, start: int | None, end: int | None) -> range:
        """Numbers of stages to search. Raises ValueError."""
        most = min(self.cluster.gpus, len(self.subject.operators()))
        first, last = start or 1, end or min(most, MOST_STAGES)
        for name, value in (("--start-num-stages", first), ("--end-num-stages", last)):
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}; it must be from 1 to {most}, the devices")
        if first > last:
            raise ValueError(f"--start-num-stages is {first}; it must be at most "
                             f"--end-num-stages, {last}")  # fmt: skip
        return range(first, last + 1)


def check_plan(plan: Plan, costs: Costs, cluster: Cluster) -> None:
    """Raises ValueError for a plan that the cluster has no devices for, or the database no
    profile."""
    if plan.gpus != cluster.gpus:
        raise ValueError(f"num_gpus adds up to {plan.gpus}; there are {cluster.nodes} x "
                         f"{cluster.per_node}")  # fmt: skip
    subject = plan.subject
    if (size := published_sizes(subject.model).get(subject.size)) is not None:
        known, own = dict(size.shape), dict(subject.shape)
        for key in (each for each in own if each in known and each not in LENGTHS):
            if own[key] != known[key]:
                raise ValueError(f"{key} is {own[key]}; the profiles of {subject.name} are of "
                                 f"{known[key]}")  # fmt: skip
    names = [operator.name for operator in costs.operators.operators]
    for index, stage in enumerate(plan.stages):
        variants = zip(stage.dp, stage.tp, stage.algo, strict=True)
        for place, (dp, tp, algo) in enumerate(variants, plan.starts[index]):
            samples, at = plan.micro // dp, f"{names[place]} in stage {index}"
            if (samples, tp, algo) not in costs.database.rows:
                known = ", ".join(map(str, costs.database.samples))
                raise ValueError(f"no profile of {samples} samples a device, tp {tp} and partition "
                                 f"{algo}, as {at} has them; samples are {known}")  # fmt: skip
            if costs.table(samples, tp, algo)[0][FORWARD, place] >= NEVER:
                raise ValueError(f"{at} ran out of memory when it was profiled with {samples} "
                                 f"samples a device and tp {tp}")  # fmt: skip
