"""DeepSpeed's pipeline engine: how a run of ours is trained by the real library.

Of P x D ranks D hold each stage, neighbours as DeepSpeed numbers them. Every rank builds its stage
(`stage.Pipe`) and calls `train_batch` once a step with an iterator over its micro-batches; 1F1B,
messages, sums over replicas, the norm, clipping and the update are DeepSpeed's. The loss of a step
comes back on all ranks. Nothing here waits for the device but at the end of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baselines import deepspeed_ops, ranks, zero
from baselines.blocks import compile_blocks
from baselines.common import decay_groups, now_s
from baselines.deepspeed_pipe.planner import LABEL, stages_of
from baselines.deepspeed_rank import FilesOfRanks, be_a_rank, make_operators
from baselines.pipeline import Stages
from baselines.stages import share_of
from workbench.core.bytesize import format_bytes
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.methods.history import History
from workbench.methods.train import load_batches, resolve_device
from workbench.model import make_model
from workbench.model.base import LayeredModel, set_parameter
from workbench.runtime.device_budget import device_meter
from workbench.runtime.threads import use_rank_threads
from workbench.schedule.mesh import Mesh


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with a stage on every rank's device.

    Raises ValueError for what DeepSpeed's pipeline cannot do, OutOfMemory past a device's budget,
    RankFailed.
    """
    ranks.refuse_host_activations(spec, LABEL)
    _stages(make_model(spec.model, spec.seed), spec)
    _operators(spec, report)  # before two ranks build the same
    return ranks.train(__name__, spec, report, folder)


@contextmanager
def training(spec: RunSpec, report: Reporter, folder: Path) -> Iterator[Training]:
    """In a rank's process: the training of its stage. DeepSpeed is left standing, as zero.py says;
    the process ends soon."""
    device = resolve_device(spec.device)
    use_rank_threads(device.type, spec.ranks)
    _operators(spec, report)
    be_a_rank(device)
    yield Training(spec, report, folder, device)


def config_of(spec: RunSpec) -> dict[str, Any]:
    """DeepSpeed's configuration.

    bf16 is its usual one for pipelines: fp32 sums of gradients, which leave the bf16 ones as soon
    as they are there, and masters and moments divided among replicas (ZeRO-1).
    """
    config = zero.base_config(spec) | {
        "train_micro_batch_size_per_gpu": _micro(spec),
        # Its clock of single micro-batches waits for the device before each of them.
        "timers": {"throughput": {"enabled": False}},
    }
    # torch's kernel instead of one that DeepSpeed would compile first.
    config["optimizer"]["params"] |= {"torch_adam": True, "fused": True}
    if spec.dtype == "bf16":
        config["bf16"] |= {"immediate_grad_update": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        config["zero_optimization"] = {"stage": 1}
    return config


class Training:
    """The training of a rank's stage by DeepSpeed."""

    def __init__(
        self, spec: RunSpec, report: Reporter, folder: Path, device: torch.device
    ) -> None:
        import deepspeed

        from baselines.deepspeed_pipe.stage import Pipe

        self.spec, self.report, self.device = spec, report, device
        replicas = spec.options.replicas
        mesh = Mesh(spec.ranks // replicas, replicas)
        self.replica = mesh.replica(dist.get_rank())
        self.model = make_model(spec.model, spec.seed)
        self.stages = _stages(self.model, spec)
        self.own = self.stages[mesh.position(dist.get_rank())]
        self.batches = load_batches(spec, self.model, folder / "cache")
        self.meter = device_meter(device, spec.device_memory)
        report.phase(f"starting DeepSpeed {deepspeed.__version__}")
        with self.meter:
            self.whole = Stages(
                self.model, [self.own], seed=spec.seed, device=device,
                checkpoint=spec.activations != "keep",
            )  # fmt: skip
            borrowed = self._tie()
        passes = spec.with_(batch=spec.batch // replicas, replicas=1, stages="auto")
        self.blocks = compile_blocks(self.whole, passes, device)
        with self.meter:
            with torch.no_grad():  # DeepSpeed sends shared weights, which would be warned of
                self.pipe = Pipe(self.whole, self.stages)
            halved = spec.dtype == "bf16"
            exact = {p: p.detach().to("cpu", copy=True) for p in self.pipe.parameters() if halved}
            self.engine, self.optimizer, _, _ = deepspeed.initialize(
                model=self.pipe, model_parameters=self._groups(borrowed), config=config_of(spec)
            )
            _set_masters(exact)
        report.phase(f"training with {self.blocks}")
        self.holder = FilesOfRanks(self.engine)
        self.history = History(spec, folder, self.batches, form="DeepSpeed")

    def run(self) -> None:
        """All steps that are left."""
        spec = self.spec
        with torch.no_grad():  # as in the beginning
            first = self.history.resume(self.holder, self.report)
        for step in range(first, spec.steps):
            begun_s = now_s(self.device)
            with self.meter:
                loss = self._step(step)
            seconds = now_s(self.device) - begun_s
            skipped = getattr(self.optimizer, "overflow", False)  # it is bf16's alone that skips
            norm = self.engine.get_global_grad_norm()
            norm = None if norm is None else float(norm)
            self.history.ended(step, loss, seconds, norm, skipped=skipped, report=self.report)
            if spec.save_every and (step + 1) % spec.save_every == 0:
                self._save(step + 1)

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        import deepspeed

        spec, history = self.spec, self.history
        units = ", ".join(f"{stage.start} to {stage.stop - 1}" for stage in self.stages)
        if self.device.type == "cuda":
            reserved = format_bytes(self.meter.reserved_peak)
            counted = f"torch's allocator, which had reserved {reserved}"
        else:
            counted = "storages alive at once"
        return Outcome(
            **history.measured(),
            peak_bytes={"device": self.meter.peak, "host": 0, "disk": 0},
            moved_bytes=dict.fromkeys(("load", "store", "read", "write"), 0),
            parameters=self.model.parameters_count(),
            engine=f"{type(self.engine).__name__} of deepspeed {deepspeed.__version__}",
            notes=[
                *history.notes,
                self.blocks,
                f"stages of units {units}; {spec.microbatches} micro-batches of {_micro(spec)} on "
                f"each of {spec.options.replicas} replicas",
                *([] if spec.dtype == "bf16" else ["DeepSpeed tells no norm of fp32 gradients"]),
                f"device peak: {counted}",
                "nothing of size is on the host or crosses the link: tokens and losses only",
            ],
        )

    # -- a step ---------------------------------------------------------------------------------

    def _step(self, step: int) -> float:
        """One optimizer step; returns its mean loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.spec.learning_rate(step)
        self.pipe.step = step
        self.pipe.coming = self._rows(step)
        return float(self.engine.train_batch(self._data(step)))

    def _rows(self, step: int) -> Iterator[tuple[int, ...]]:
        """Samples of each of this rank's micro-batches."""
        samples, size = self.batches.samples(step), self.spec.microbatch
        part = share_of(size, self.replica, self.spec.options.replicas)
        for start in range(0, self.spec.batch, size):
            yield samples[start + part.start : start + part.stop]

    def _data(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens and targets of each; DeepSpeed asks on the first and the last stage alone, there
        just before the micro-batch passes."""
        for rows in self._rows(step):
            tokens, targets = (part.to(self.device) for part in self.batches.rows(rows))
            self.pipe.targets = targets
            yield tokens, targets

    # -- weights --------------------------------------------------------------------------------

    def _tie(self) -> list[tuple[int, str]]:
        """Tied weights become one parameter where this rank has both units, and get memory where it
        has the unit that does not own it: (unit, local name) of those."""
        borrowed = []
        for (unit, name), (owner, owner_name) in self.model.tied().items():
            if unit in self.own and owner in self.own:
                owned = self.whole.units[owner].get_parameter(owner_name)
                set_parameter(self.whole.units[unit], name, owned)
            elif unit in self.own:
                shape = self.model.shapes(owner)[owner_name]
                set_parameter(self.whole.units[unit], name, torch.empty(shape, device=self.device))
                borrowed.append((unit, name))
        return borrowed

    def _groups(self, borrowed: list[tuple[int, str]]) -> list[dict]:
        """Parameter groups; of a tied weight each of its ranks has states, and updates its own."""
        groups = decay_groups(self.model, self.whole, self.spec.weight_decay)
        for unit, name in borrowed:
            decay = self.spec.weight_decay if self.model.decays(unit, name) else 0.0
            group = next(group for group in groups if group["weight_decay"] == decay)
            group["params"].append(self.whole.units[unit].get_parameter(name))
        return groups

    # -- checkpoints ----------------------------------------------------------------------------

    def _save(self, next_step: int) -> None:
        done = next_step - len(self.history.skipped)
        save = self.history.save
        self.holder.save(lambda: save(next_step, done, self.holder, self.report))


def _set_masters(exact: dict[Tensor, Tensor]) -> None:
    """Give the fp32 masters the digits that bf16 had no room for."""
    from deepspeed.utils import safe_set_full_fp32_param

    for parameter, value in exact.items():
        safe_set_full_fp32_param(parameter, value)


def _stages(model: LayeredModel, spec: RunSpec) -> tuple[range, ...]:
    units = range(model.num_units)
    flops = [model.flops(unit, _micro(spec), spec.model.seq) for unit in units]
    return stages_of(spec, flops, [model.unit_parameters(unit) for unit in units])


def _micro(spec: RunSpec) -> int:
    """Samples of a micro-batch of one replica."""
    return spec.microbatch // spec.options.replicas


def _operators(spec: RunSpec, report: Reporter) -> None:
    device = resolve_device(spec.device)
    make_operators(
        report, device, deepspeed_ops.required(offload=False, device=device.type), LABEL
    )
