"""Evaluation of any method's weights on held-out data, between two steps of a training.

Methods differ in who holds the weights. They have in common that a checkpoint gathers them, so that
is the way here: the fp32 weights of all units go to files in the run's folder, and one process runs
the whole model on them, in fp32 on its processor. That costs 4 bytes a parameter of disk, as much
memory for pages of files, which the system may drop, and a forward pass on a processor for each
sample; answers are written greedily, a forward pass a token. Nothing of the training is touched:
the model is another one, draws are keyed, and torch's generator is put back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
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
from workbench.runtime.checkpoint.checkpoint import WEIGHTS, file_of, label_of
from workbench.runtime.passes.statistics import take_up
from workbench.training.answered import exact, f1

ROWS, TOKENS = 16, 4096
"""Samples of a forward pass, of which texts have at most so many tokens together: a layer's values
of them are gigabytes of the host, beside weights that lie in files."""


class Evaluator:
    """Evaluates weights on the held-out data of a run."""

    def __init__(self, spec: RunSpec, folder: Path, *, epoch: int) -> None:
        """`folder` is the run's own; `epoch` counts the samples that are trained on. The first
        evaluation makes the model and reads the data: of several ranks one evaluates."""
        self._spec, self._epoch, self._cache = spec, epoch, folder / "cache"

    @cached_property
    def _model(self) -> LayeredModel:
        """Another one than that which is trained."""
        return make_model(self._spec.held_out.model, self._spec.seed)

    @cached_property
    def _batches(self) -> Batches | Draws:
        return load_part(self._spec, self._model, self._cache, held_out=True)

    def evaluate(self, folder: Path, statistics: dict[str, Tensor], steps: int) -> Evaluation:
        """Figures of the weights in the units' files of a folder, and of BatchNorm's running
        `statistics` by their names in the whole model, after so many steps. Raises OSError or
        SafetensorError where they cannot be read, ValueError for held-out data that cannot be
        used."""
        spec, began = self._spec, time.monotonic()
        with apart(on_gpu=spec.device == "cuda"):
            whole = self._whole(folder, statistics)
            count = min(len(self._batches), spec.eval_samples or len(self._batches))
            found = Evaluation(
                step=steps, epoch=steps * spec.batch / self._epoch, samples=count,
                **self._figures(whole, count),
            )  # fmt: skip
        return found | {"seconds": time.monotonic() - began}

    def _whole(self, folder: Path, statistics: dict[str, Tensor]) -> Whole:
        """The model, its weights lying in the files."""
        model, units = self._model, []
        for unit in range(model.num_units):
            path, module = folder / file_of(unit), model.empty_module(unit)
            weights = load_file(path) if path.exists() else {}  # a unit may own nothing
            for local in model.shapes(unit):
                set_parameter(module, local, weights[label_of(WEIGHTS[0], model, unit, local)])
            units.append(module)
        model.tie(units)
        take_up(model, units, statistics)
        # Decoders by their units, which divide the logits; modules as they are written.
        as_written = self._spec.model.decomposed
        whole = Whole(model, units, seed=self._spec.seed, checkpoint=False, undivided=as_written)
        return whole.eval()

    def _figures(self, whole: Whole, count: int) -> dict[str, float]:
        """Mean loss of the held-out samples, and what else their targets have."""
        sums: dict[str, float] = {"loss": 0.0}
        labels, text = 0, getattr(getattr(self._batches, "data", None), "text", None)
        most = max(1, min(ROWS, TOKENS // self._spec.model.seq))
        for first in range(0, count, most):
            samples = tuple(range(first, min(count, first + most)))
            *inputs, targets = self._batches.rows(samples)
            given = inputs[0] if len(inputs) == 1 else tuple(inputs)
            counted = sum(self._model.counted(targets))
            if counted:
                sums["loss"] += float(whole(given, targets, samples=samples)) * counted
                labels += counted
            classes = targets.dim() == 1 and not targets.is_floating_point()
            if classes:
                right = output_of(whole(given, samples=samples)).argmax(-1) == targets
                sums["accuracy"] = sums.get("accuracy", 0.0) + int(right.sum())
            elif text is not None:
                for ids, wanted in zip(_written(whole, inputs, samples), targets, strict=True):
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


def output_of(output: object) -> Tensor | None:
    """Logits among all that a user's model puts out; None where there are none."""
    if isinstance(output, Mapping):
        output = output.get("logits")
    return output if isinstance(output, Tensor) else None


def _written(whole: Whole, inputs: list[Tensor], samples: tuple[int, ...]) -> Tensor:
    """Answers of an encoder-decoder, whose last input is what its decoder reads: [rows, length],
    each token the likeliest one after those before it."""
    *source, reads = inputs
    reads = torch.full_like(reads, int(reads[0, 0]))  # begins with padding, and has no more yet
    written = torch.zeros_like(reads)
    for at in range(reads.shape[1]):
        logits = output_of(whole((*source, reads), samples=samples))
        written[:, at] = logits[:, at].argmax(-1)
        if at + 1 < reads.shape[1]:
            reads[:, at + 1] = written[:, at]
    return written


@contextmanager
def apart(*, on_gpu: bool) -> Iterator[None]:
    """Within, torch works without gradients and with random numbers of its own; where training is
    `on_gpu`, which leaves it a thread, on all cores."""
    threads = torch.get_num_threads()
    if on_gpu:
        torch.set_num_threads(available_cores())
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
