"""Evaluation of any method's weights on held-out data, between two steps of a training.

Methods differ in who holds the weights. Where a process has them all they are read from there, a
few at a time; else a checkpoint's way gathers them, in fp32 in files of the run's folder. One
process passes the samples forward: on its GPU in the type of training, a unit after another
(runtime/passes/visiting.py), in memory that training leaves (places.py), or on the processor in
fp32. Answers are written greedily, a forward pass a token. Nothing of the training is touched: the
model is another one, draws are keyed, and torch's generators are put back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.core.host import available_cores
from workbench.core.record import Evaluation
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.base import LayeredModel, set_parameter
from workbench.model.draws import Draws
from workbench.model.held_out import load_part
from workbench.model.text import Batches
from workbench.model.whole import Whole
from workbench.runtime.checkpoint.checkpoint import ByUnit, in_files
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.statistics import take_up
from workbench.runtime.passes.visiting import Arriving, Part, Place, Units, Visits
from workbench.training.answered import exact, f1
from workbench.training.places import foreign, somewhere

ROWS, TOKENS, GROUP_TOKENS = 16, 4096, 32768
"""Samples of a forward pass, of which texts have at most so many tokens together; and tokens of
those that pass through a unit before the next one comes."""
LEAN_TOKENS = 8192
"""Of those that do so a sample at a time, where there is little room."""


class Evaluator:
    """Evaluates weights on the held-out data of a run."""

    def __init__(self, spec: RunSpec, folder: Path, *, epoch: int) -> None:
        """`folder` is the run's own; `epoch` counts the samples that are trained on. The first
        evaluation makes the model and reads the data: of several ranks one evaluates."""
        self._spec, self._epoch, self._cache = spec, epoch, folder / "cache"
        self.note = ""
        """Says why an evaluation was not where training is."""

    @cached_property
    def _model(self) -> LayeredModel:
        """Another one than that which is trained, for any device."""
        return make_model(self._spec.held_out.model.anywhere, self._spec.seed)

    @cached_property
    def _batches(self) -> Batches | Draws:
        return load_part(self._spec, self._model, self._cache, held_out=True)

    def in_files(self, folder: Path) -> ByUnit:
        """Weights in the units' files of a folder."""
        return in_files(self._model, folder)

    def evaluate(
        self, weights: ByUnit, statistics: dict[str, Tensor], steps: int, *, idle: bool = True
    ) -> Evaluation:
        """Figures of the weights, and of BatchNorm's running `statistics` by their names in the
        whole model, after so many steps: on the GPU that this process trains on, if it is `idle`.
        Raises OSError or SafetensorError where weights cannot be read, ValueError for held-out data
        that cannot be used."""
        spec, began = self._spec, time.monotonic()
        device = torch.device("cpu")
        if idle and spec.device != "cpu" and torch.cuda.is_initialized():
            device = torch.device("cuda", torch.cuda.current_device())
        with apart(device):
            count = min(len(self._batches), spec.eval_samples or len(self._batches))
            work = partial(self._figures, weights, statistics, count)
            figures = somewhere(
                work, device, DTYPES[spec.dtype], spec.device_memory, partial(setattr, self, "note")
            )
            found = Evaluation(
                step=steps, epoch=steps * spec.batch / self._epoch, samples=count, **figures
            )
        return found | {"seconds": time.monotonic() - began}

    def _figures(
        self, weights: ByUnit, statistics: dict[str, Tensor], count: int, place: Place
    ) -> dict[str, float]:
        """Mean loss of the held-out samples, and what else their targets have."""
        sums: dict[str, float] = {"loss": 0.0}
        labels, text = 0, getattr(getattr(self._batches, "data", None), "text", None)
        visits = Visits(weights, place)
        if self._spec.model.decomposed:  # modules as they are written
            with foreign(place):
                passes = Written(self._model, visits, statistics, self._spec.seed)
        else:  # decoders by their units, which divide the logits
            passes = Units(self._model, visits, self._spec.seed)
        for group in self._groups(count, place):
            counted = [sum(self._model.counted(part.targets)) for part in group]
            whole = [(part, n) for part, n in zip(group, counted, strict=True) if n]
            losses = passes.losses([part for part, _ in whole])
            sums["loss"] += sum(float(loss) * n for loss, (_, n) in zip(losses, whole, strict=True))
            labels += sum(counted)
            for part in group:
                targets = part.targets
                classes = targets.dim() == 1 and not targets.is_floating_point()
                if classes:
                    right = output_of(passes.outputs(part)).argmax(-1).cpu() == targets
                    sums["accuracy"] = sums.get("accuracy", 0.0) + int(right.sum())
                elif text is not None:
                    for ids, wanted in zip(_written(passes, part), targets, strict=True):
                        told, reference = text(ids.tolist()), text(wanted.tolist())
                        for name, judge in (("exact", exact), ("f1", f1)):
                            sums[name] = sums.get(name, 0.0) + 100 * judge(told, reference)
        if not labels:
            raise ValueError(f"of the labels of {count} held-out samples none counts")
        found = {name: value / count for name, value in sums.items()}
        found["loss"] = sums["loss"] / labels
        if text is None and not classes and not targets.is_floating_point():
            found["perplexity"] = math.exp(found["loss"]) if found["loss"] < 700 else math.inf
        return found

    def _groups(self, count: int, place: Place) -> Iterator[list[Part]]:
        """Samples that pass through a unit together, in parts."""
        seq = self._spec.model.seq
        rows = 1 if place.lean else max(1, min(ROWS, TOKENS // seq))
        group = max(1, (LEAN_TOKENS if place.lean else GROUP_TOKENS) // seq)
        for first in range(0, count, max(rows, group // rows * rows)):
            numbers = range(first, min(count, first + max(rows, group // rows * rows)))
            parts = (tuple(numbers[at : at + rows]) for at in range(0, len(numbers), rows))
            read = ((samples, self._batches.rows(samples)) for samples in parts)
            yield [Part(samples, inputs, targets) for samples, (*inputs, targets) in read]


class Written:
    """A module as it is written, which passes forward with weights that visit a place."""

    def __init__(
        self, model: LayeredModel, visits: Visits, statistics: dict[str, Tensor], seed: int
    ) -> None:
        self._place, units, names = visits.place, [], {}
        for unit in range(model.num_units):
            module = model.empty_module(unit, device=self._place.device)
            for local, shape in model.shapes(unit).items():
                name = model.state_name(unit, local)
                away = torch.empty(shape, dtype=self._place.dtype, device="meta")
                stays = self._place.room is None
                set_parameter(module, local, visits[name] if stays else away)
                names |= {} if stays else {id(module.get_parameter(local)): name}
            units.append(module)
        model.tie(units)
        take_up(model, units, statistics)
        self._arriving = Arriving(visits, names)
        with self._arriving:
            self._whole = Whole(model, units, seed=seed, checkpoint=False, undivided=True).eval()

    def losses(self, parts: Sequence[Part]) -> list[Tensor]:
        """Mean loss of each part."""
        return [self.outputs(part, part.targets) for part in parts]

    def outputs(self, part: Part, targets: Tensor | None = None) -> Any:
        """All that the module puts out for a part; with targets, their mean loss."""
        part = replace(part, targets=targets).at(self._place)
        with foreign(self._place), self._arriving:
            return self._whole(part.given, part.targets, samples=part.samples)


def output_of(output: object) -> Tensor | None:
    """Logits among all that a user's model puts out; None where there are none."""
    if isinstance(output, Mapping):
        output = output.get("logits")
    return output if isinstance(output, Tensor) else None


def _written(passes: Written, part: Part) -> Tensor:
    """Answers of an encoder-decoder, whose last input is what its decoder reads: [rows, length],
    each token the likeliest one after those before it."""
    *source, reads = part.inputs
    reads = torch.full_like(reads, int(reads[0, 0]))  # begins with padding, and has no more yet
    written = torch.zeros_like(reads)
    for at in range(reads.shape[1]):
        logits = output_of(passes.outputs(replace(part, inputs=(*source, reads))))
        written[:, at] = logits[:, at].argmax(-1)
        if at + 1 < reads.shape[1]:
            reads[:, at + 1] = written[:, at]
    return written


@contextmanager
def apart(device: torch.device) -> Iterator[None]:
    """Within, torch works without gradients and with random numbers of its own; where training is
    on a GPU `device`, which leaves it a thread, on all cores."""
    threads, on_gpu = torch.get_num_threads(), device.type == "cuda"
    if on_gpu:
        torch.set_num_threads(available_cores())
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[device] * on_gpu):
            yield
    finally:
        torch.set_num_threads(threads)
