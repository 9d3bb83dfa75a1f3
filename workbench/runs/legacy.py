"""Log lines in the format of the published artifact, so that one parser reads its logs and ours.

The format is Megatron-LM's: an ``iteration`` line, then throughput lines. Two of its defects are
not kept: a loss that is not a number is printed as nan instead of being left out, and the
throughput counts all samples of a step.
"""

from __future__ import annotations

import math
import time

from workbench.core.spec import RunSpec

EVERY_STEP_UP_TO = 100
"""Runs of more steps print one line in ten, as the published ones did."""


class LineWriter:
    """Turns reported steps into log lines; of many steps, ten are averaged into one line."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._interval = 1 if spec.steps <= EVERY_STEP_UP_TO else 10
        self._losses: list[float] = []
        self._seconds: list[float] = []
        try:
            self._parameters: int | None = spec.model.parameters
        except ValueError:  # a model without a closed formula
            self._parameters = None

    def header(self) -> list[str]:
        """Header of the log for its readers, as Megatron-LM dumps its arguments."""
        spec, model = self._spec, self._spec.model
        arguments = {
            "method": spec.method,
            "num_layers": model.layers,
            "hidden_size": model.hidden,
            "num_attention_heads": model.heads,
            "seq_length": model.seq,
            "padded_vocab_size": model.vocab,
            "global_batch_size": spec.batch,
            "train_iters": spec.steps,
            "seed": spec.seed,
        }
        lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
        if self._parameters is not None:
            lines.append(
                " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): "
                f"{self._parameters}"
            )
        return lines

    def footer(self) -> str:
        """The line that says that training came to its end."""
        return f"[exiting program at iteration {self._spec.steps}] datetime: {_now()}"

    def step(self, step: int, loss: float, seconds: float) -> list[str]:
        """The lines to print after step `step` (from 0); none between intervals."""
        self._losses.append(loss)
        self._seconds.append(seconds)
        if (step + 1) % self._interval and step + 1 < self._spec.steps:
            return []
        mean_loss = sum(self._losses) / len(self._losses)
        mean_seconds = sum(self._seconds) / len(self._seconds)
        not_finite = sum(not math.isfinite(value) for value in self._losses)
        self._losses, self._seconds = [], []
        return self._lines(step, mean_loss, mean_seconds, not_finite)

    def _lines(self, step: int, loss: float, seconds: float, not_finite: int) -> list[str]:
        spec = self._spec
        lines = [
            f" iteration {step + 1:8d}/{spec.steps:8d}"
            f" | elapsed time per iteration (ms): {1000 * seconds:.1f}"
            f" | learning rate: {spec.learning_rate(step):.3E}"
            f" | global batch size: {spec.batch:5d}"
            f" | lm loss: {loss:.6E}"
            f" | loss scale: 1.0"
            f" | number of skipped iterations: {0:3d}"
            f" | number of nan iterations: {not_finite:3d} |"
        ]
        if self._parameters is not None and seconds > 0:
            flops = recompute_flops(self._parameters, spec.batch, spec.model.seq)
            lines.append(
                f"Effective Tera Flops per GPU: {flops / seconds / 1e12:.4g}"
                f" and total parameters {self._parameters / 1e9:.3f} B"
            )
        if seconds > 0:
            lines.append(
                f"NumWorkers: {spec.ranks}; SamplesPerStep: {spec.batch}; IterationTime: {seconds};"
                f"  SamplesPerSecond: {spec.batch / seconds}"
            )
        return lines


def phase_line(text: str) -> str:
    """A stage of preparation, as Megatron-LM prints its own."""
    return f"[{text}] datetime: {_now()}"


def recompute_flops(parameters: int, batch: int, seq: int) -> float:
    """Operations of one step as the published logs count them: 8 per parameter and token.

    Two forward, four backward, two for recomputation; attention's quadratic term is left out.
    """
    return 8.0 * parameters * batch * seq


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
