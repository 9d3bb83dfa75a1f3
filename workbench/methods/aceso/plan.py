"""A plan: stages of operators, tp, dp, partition and recomputation of each; its JSON file.

The file is that of Aceso's artifact (EuroSys'24), byte for byte: a plan that was read and is
written again is the same file. A plan that is wrong is refused when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from workbench.core.files import read_whole
from workbench.core.jsonfile import parse_json
from workbench.core.schema import read_as
from workbench.model.operators import MODULE, OperatorList, operator_list, published_sizes
from workbench.model.operators.sizes import TINY

Flag = Literal[0, 1]
MOST_GPUS = 255
DIVIDED = ("num_key_value_heads", "num_attention_heads", "in_channels")
"""Sizes that tp divides: the first of them that a model has."""
MOST = 1 << 20
"""Of samples and sizes: as much as a run takes."""


class Stage(NamedTuple):
    """A stage: operators in a row on devices of its own. A byte an operator: a stage is a key."""

    gpus: int
    tp: bytes
    dp: bytes
    algo: bytes
    recompute: bytes

    @property
    def uniform(self) -> bool:
        """Whether tp, dp and partition are alike everywhere in it."""
        return all(each.count(each[0]) == len(each) for each in self[1:4])


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model of a size, and the batch it is trained with."""

    model: str
    size: str
    layers: int | tuple[int, ...]
    shape: tuple[tuple[str, int], ...]
    """Further keys of a plan, in their order."""
    batch: int
    """Samples of an iteration."""

    @property
    def name(self) -> str:
        """``gpt_1_3B``, as profiles are named."""
        return f"{self.model}_{self.size}"

    @property
    def half(self) -> bool:
        """Whether 16-bit weights have 32-bit masters."""
        return self.model not in ("resnet", MODULE)

    def unlike(self, other: Subject) -> str:
        """The first number of a plan's file in which another model differs, and its own; empty
        where there is none."""
        own, its = ({"global_batch_size": s.batch, "num_layers": s.layers, **dict(s.shape)}
                    for s in (self, other))  # fmt: skip
        return next((f"{key} is {its.get(key)}; it must be {value}" for key, value in own.items()
                     if its.get(key) != value), "")  # fmt: skip

    def operators(self) -> OperatorList:
        """Its operators. Raises ValueError."""
        return operator_list(self.model, self.layers)


@dataclass(frozen=True)
class Plan:
    """How a model is trained on the devices of some nodes."""

    subject: Subject
    micro: int
    """Samples of a micro-batch, over the replicas of a stage."""
    stages: tuple[Stage, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First operator of each stage, and the number of all."""
        found = [0]
        for stage in self.stages:
            found.append(found[-1] + len(stage.tp))
        return tuple(found)

    @property
    def gpus(self) -> int:
        """Devices of all stages."""
        return sum(stage.gpus for stage in self.stages)

    def to_json(self) -> str:
        """The text of its file."""
        return json.dumps(self.to_dict(), indent=4)

    def to_dict(self) -> dict[str, Any]:
        """Keys of its file, in their order."""
        subject, stages = self.subject, self.stages
        layers = subject.layers
        return {
            "model_name": subject.model,
            "model_size": subject.size,
            "num_layers": layers if isinstance(layers, int) else list(layers),
            **dict(subject.shape),
            "global_batch_size": subject.batch,
            "micro_batch_size": self.micro,
            "num_stages": len(stages),
            "num_gpus": [stage.gpus for stage in stages],
            "checkpoint_activations": [any(stage.recompute) for stage in stages],
            "resharding_stages": [not stage.uniform for stage in stages],
            "num_ops_in_each_stage": [len(stage.tp) for stage in stages],
            "model_parallel_size_of_each_op": [list(stage.tp) for stage in stages],
            "data_parallel_size_of_each_op": [list(stage.dp) for stage in stages],
            "recompute_ops": [list(stage.recompute) for stage in stages],
            "algo_of_each_op": [list(stage.algo) for stage in stages],
        }


def subject_of(
    model: str, size: str, batch: int, layers: int | None = None, seq: int | None = None,
    target_seq: int | None = None, hidden: int | None = None, heads: int | None = None,
) -> Subject:  # fmt: skip
    """A published model, or a ``tiny`` one, of another depth, width or other lengths where these
    are given. Raises ValueError."""
    family = "gpt" if model == "scale-layer" else model
    sizes = {**published_sizes(family), "tiny": TINY[family]}
    if model == "scale-layer":
        model, size = "gpt", "scale-layer"
        if layers is None:
            raise ValueError("--num-layers is missing; scale-layer has any number of layers")
    if size not in sizes:
        raise ValueError(f"the size is {size!r}; {model} has {', '.join(sizes)}")
    if batch < 1:
        raise ValueError(f"the global batch is {batch}; it must be 1 or more")
    known = sizes[size]
    shape = dict(known.shape)
    for key, value in (("seq_length", seq), ("encoder_seq_length", seq),
                       ("decoder_seq_length", target_seq), ("hidden_size", hidden),
                       ("num_attention_heads", heads)):  # fmt: skip
        if value is not None and value < 1:
            raise ValueError(f"{key} is {value}; it must be 1 or more")
        if value is not None and key in shape:
            shape[key] = value
    return Subject(
        model=model, size=size, batch=batch, layers=known.layers if layers is None else layers,
        shape=tuple(shape.items()),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Written:
    """The keys of a file."""

    model_name: Literal["gpt", "t5", "resnet", "llama", "module"]
    model_size: str
    num_layers: int | list[int]
    global_batch_size: int
    micro_batch_size: int
    num_stages: int
    num_gpus: list[int]
    checkpoint_activations: list[bool]
    resharding_stages: list[bool]
    num_ops_in_each_stage: list[int]
    model_parallel_size_of_each_op: list[list[int]]
    data_parallel_size_of_each_op: list[list[int]]
    recompute_ops: list[list[Flag]]
    algo_of_each_op: list[list[Flag]]
    seq_length: int | None = None
    max_position_embeddings: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    hidden_size: int | None = None
    encoder_seq_length: int | None = None
    decoder_seq_length: int | None = None
    kv_channels: int | None = None
    ffn_hidden_size: int | None = None
    in_channels: int | None = None
    width_factor: int | None = None


def read_plan(text: str | bytes, where: str) -> Plan:
    """The plan of a file's text. Raises ValueError, one sentence that begins with `where`."""
    written = read_as(_Written, parse_json(text, where), where)
    try:
        return _plan(written)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def load_plan(path: Path) -> Plan:
    """The plan of a file. Raises ValueError."""
    try:
        return read_plan(read_whole(path, f"the plan {path}"), f"the plan {path}")
    except OSError as error:
        raise ValueError(f"the plan {path} cannot be read: {error.strerror}") from None


def _plan(written: _Written) -> Plan:
    keys = ()
    if written.model_name != MODULE:
        keys = next(iter(published_sizes(written.model_name).values())).shape
    shape = []
    for key in keys:
        value = getattr(written, key)
        if value is None or not 1 <= value <= MOST:
            raise ValueError(f"{key} is {value}; a plan of {written.model_name} must have it, from "
                             f"1 to {MOST}")  # fmt: skip
        shape.append((key, value))
    layers = written.num_layers
    subject = Subject(
        model=written.model_name, size=written.model_size, shape=tuple(shape),
        layers=layers if isinstance(layers, int) else tuple(layers),
        batch=written.global_batch_size,
    )  # fmt: skip
    operators = subject.operators()
    count, batch, micro = written.num_stages, subject.batch, written.micro_batch_size
    if not 1 <= batch <= MOST:
        raise ValueError(f"global_batch_size is {batch}; it must be from 1 to {MOST}")
    if not 1 <= micro <= batch:
        raise ValueError(f"micro_batch_size is {micro}; it must be from 1 to the batch of {batch}")
    if not 1 <= count <= len(operators):
        raise ValueError(f"num_stages is {count}; it must be from 1 to {len(operators)} operators")
    lists = (
        "num_gpus", "checkpoint_activations", "resharding_stages", "num_ops_in_each_stage",
        "model_parallel_size_of_each_op", "data_parallel_size_of_each_op", "recompute_ops",
        "algo_of_each_op",
    )  # fmt: skip
    for name in lists:
        if len(held := getattr(written, name)) != count:
            raise ValueError(f"{name} has {len(held)} entries; it must have one of {count} stages")
    numbers = written.num_ops_in_each_stage
    if sum(numbers) != len(operators):
        raise ValueError(f"num_ops_in_each_stage adds up to {sum(numbers)}; {subject.model} of "
                         f"{layers} layers has {len(operators)} operators")  # fmt: skip
    stages = tuple(_stage(written, index, subject, micro) for index in range(count))
    plan = Plan(subject=subject, micro=micro, stages=stages)
    for key in ("checkpoint_activations", "resharding_stages"):
        for index, (said, true) in enumerate(
            zip(getattr(written, key), plan.to_dict()[key], strict=True)
        ):
            if said != true:
                raise ValueError(f"{key}[{index}] is {said}; by its operators it must be {true}")
    return plan


def _stage(written: _Written, index: int, subject: Subject, micro: int) -> Stage:
    gpus, ops = written.num_gpus[index], written.num_ops_in_each_stage[index]
    if not 1 <= gpus <= MOST_GPUS:
        raise ValueError(f"num_gpus[{index}] is {gpus}; it must be from 1 to {MOST_GPUS}")
    if ops < 1:
        raise ValueError(f"num_ops_in_each_stage[{index}] is {ops}; it must be 1 or more")
    lists: list[Sequence[int]] = []
    for name in ("model_parallel_size_of_each_op", "data_parallel_size_of_each_op",
                 "algo_of_each_op", "recompute_ops"):  # fmt: skip
        held = getattr(written, name)[index]
        if len(held) != ops:
            raise ValueError(f"{name}[{index}] has {len(held)} entries; the stage has {ops} "
                             "operators")  # fmt: skip
        lists.append(held)
    shape = dict(subject.shape)
    name = next((key for key in DIVIDED if key in shape), None)
    for place, (tp, dp) in enumerate(zip(lists[0], lists[1], strict=True)):
        at = f"of operator {place} of stage {index}"
        if tp < 1 or dp < 1 or tp * dp != gpus:
            raise ValueError(f"tp {tp} x dp {dp} {at} is {tp * dp}; its stage has {gpus} GPUs")
        if name is None and tp > 1:
            raise ValueError(f"tp {at} is {tp}; layers of a module are not divided, it must be 1")
        if name is not None and shape[name] % tp:
            raise ValueError(f"tp {at} is {tp}; it must divide {name}, which is {shape[name]}")
        if micro % dp:
            raise ValueError(f"dp {at} is {dp}; it must divide the micro-batch of {micro}")
    return Stage(gpus, *map(bytes, lists))
