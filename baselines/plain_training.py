"""Plain training in torch, as one writes it for a model that fits: one module, one device, no
runtime of ours.

Working weights, activations and gradients are of the spec's dtype; with bf16 the fp32 master
weights lie beside them. A step is forward and backward per micro-batch, the exact global norm of
the gradients, and then, some layers at a time so that widened gradients take little memory: a
foreach copy that widens, torch's fused AdamW on the masters with clipping in its kernel, and a
foreach copy back into the working weights. Nothing waits for the device in between. Blocks are
compiled where the spec allows it (`baselines.blocks`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from baselines.adamw import ClippedAdamW
from baselines.blocks import compile_blocks
from baselines.common import decay_groups, named_units
from baselines.late import refuse_host_activations
from baselines.states import ModuleHolder
from baselines.stepping import NOTHING_MOVES, Resident
from workbench.core.bytesize import format_bytes
from workbench.core.record import Outcome
from workbench.core.reporter import Reporter
from workbench.core.spec import RunSpec
from workbench.model.base import LayeredModel
from workbench.model.text import Batches
from workbench.model.whole import make_whole
from workbench.model.written import AsWritten
from workbench.runtime.executor.threads import use_rank_threads
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.statistics import take_up, undivided
from workbench.training.loop import InOneProcess, Steps, Task
from workbench.training.run import tell_of


def train(spec: RunSpec, report: Reporter, folder: Path) -> Outcome:
    """Train with everything on the device.

    Raises ValueError for what plain training does not have, OutOfMemory past the device's budget.
    """
    run = PlainTraining(spec, report, folder)
    tell_of(run.model, spec, report, run.batches)
    run.run()
    return run.outcome()


def driven(task: Task) -> Steps:
    """Steps that a user's loop asks for."""
    return InOneProcess(
        task, lambda spec, *given: PlainTraining(spec, task.report, task.folder, given=given)
    )


class PlainTraining(Resident):
    """One plain training."""

    built, holder_kind = "the model", ModuleHolder
    """Part of the model that is here, in words; who writes it into checkpoints."""

    def __init__(
        self,
        spec: RunSpec,
        report: Reporter,
        folder: Path,
        *,
        passes: RunSpec | None = None,
        given: tuple[LayeredModel, Batches] | None = None,
    ) -> None:
        """`passes`: the spec of what passes the model here, where others have the rest of it.
        `given`: a model and data that the spec does not name."""
        refuse_host_activations(spec, "plain training", "keeps everything on the device")
        super().__init__(spec, report, folder, given)
        use_rank_threads(self.device.type, spec.ranks)
        self.meter = device_meter(self.device, spec.device_memory)
        report.phase(f"building {self.built}")
        with self.meter:
            self.whole = self._whole()
            self.masters = self._split_masters()
            self.optimizer = self._optimizer()
        self.blocks = compile_blocks(self.whole, passes or spec, self.device)
        report.phase(f"training with {self.blocks}")
        self._hold(self.holder_kind)

    def outcome(self) -> Outcome:
        """The measured half of the record."""
        how = "storages alive at once"
        if self.device.type == "cuda":
            reserved = format_bytes(self.meter.reserved_peak)
            how = f"torch's allocator, which had reserved {reserved}"
        return self.measured(
            f"torch {torch.__version__}, {self.blocks}",
            [*self.history.notes, f"device peak: {how}", NOTHING_MOVES],
            peak={"device": self.meter.peak},
        )

    # -- a step ---------------------------------------------------------------------------------

    def _watched(self, _: int) -> AbstractContextManager[Any]:
        return self.meter

    # -- set-up ---------------------------------------------------------------------------------

    def _whole(self) -> nn.Module:
        """All that is trained here."""
        return make_whole(
            self.model,
            seed=self.spec.seed,
            device=self.device,
            checkpoint=self.spec.activations != "keep",
            undivided=True,
        )

    def _split_masters(self) -> dict[Tensor, Tensor]:
        """Working weight -> fp32 master, the same tensor in fp32. The weights become the dtype's;
        buffers stay, since rotary frequencies in bf16 would be other frequencies."""
        dtype = DTYPES[self.spec.dtype]
        masters: dict[Tensor, Tensor] = {}
        for _, _, weight in named_units(self.whole):
            if dtype == torch.float32:
                masters[weight] = weight
            else:
                masters[weight] = weight.detach()
                weight.data = weight.data.to(dtype)
        return masters

    def _optimizer(self) -> ClippedAdamW:
        groups = decay_groups(self.model, self.whole, self.spec.weight_decay)
        for group in groups:
            group["params"] = [self.masters[weight] for weight in group["params"]]
        return ClippedAdamW(groups, self.spec)

    # -- checkpoints ----------------------------------------------------------------------------

    def statistics(self) -> dict[str, Tensor]:
        """As `Stepping.statistics`."""
        return undivided(self.model, self.whole.units)

    def take_up(self, statistics: dict[str, Tensor]) -> None:
        """As `Stepping.take_up`."""
        written = getattr(self.whole, "written", None)  # stages of a pipeline have none
        others = [written.module] if isinstance(written, AsWritten) else []
        take_up(self.model, self.whole.units, statistics, others)
