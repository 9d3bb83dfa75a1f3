"""Answers to questions before running (planning.py): a plan and its machine, also in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from workbench.core.bytesize import format_bytes
from workbench.core.readable import format_step, parameters
from workbench.core.spec import RunSpec
from workbench.profile.dividing import in_words
from workbench.schedule.plan import Plan


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer:
    """One method's plan and the machine it holds for."""

    plan: Plan
    spec: RunSpec
    hardware: str
    source: str
    """Origin of the costs, as `Hardware.source` has it."""
    here: bool = True
    """Whether it is this machine."""
    parameters: int = 0
    basis: str = ""
    """How times were obtained, in a sentence, or how to get them; empty of measured ones."""
    spares: bool = False
    """Whether the plan leaves much of the device's memory free."""
    chosen: bool = False
    """Whether the number of micro-batches was left to the planner."""

    @property
    def samples_per_second(self) -> float | None:
        """Samples of a batch over the seconds of a step; None where no plan fits or no time is
        known."""
        seconds = self.plan.step_seconds
        return self.spec.batch / seconds if seconds and self.plan.fits else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens, as `samples_per_second`."""
        samples = self.samples_per_second
        return samples and samples * self.spec.model.seq

    def in_words(self, *, largest: bool = False) -> str:
        """A line: seconds a step, what the planner chose, the peak of each tier; or why nothing
        fits. With `largest` also the size of the model, which is then an answer, too."""
        plan, spec = self.plan, self.spec
        if not plan.fits:
            return f"does not fit: {plan.binding}"
        words = format_step(plan.step_seconds, plan.step_seconds_range)
        if largest:
            words = f"{spec.model.layers} layers, {parameters(self.parameters)}; {words}"
        words += f", {self.tokens_per_second:,.0f} tokens/s" if self.tokens_per_second else ""
        words += ", --activations keep" * (spec.activations == "keep")
        if self.chosen:
            words += f", {in_words(spec)}"
        elif spec.ranks > 1 and spec.microbatches > 1:
            words += f", --microbatches {spec.microbatches}"
        words += f", window {plan.window}" if plan.window is not None else ""
        peaks = ", ".join(f"{format_bytes(n)} {tier}" for tier, n in plan.peak_bytes.items() if n)
        return f"{words}; peak {peaks}"

    def __repr__(self) -> str:
        return "\n  ".join(self._lines())

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        """The plan and its machine, what binds it, and what else is to be known."""
        yield f"{self.plan.method} on {self.hardware} ({self.source}): {self.in_words()}"
        if self.plan.fits and self.plan.step_seconds:
            yield f"bound by {self.plan.binding}"
        yield from filter(None, (*self.plan.notes, self.basis))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: the plan's fields, its throughput, and where the costs come from."""
        return {
            **self.plan.to_dict(),
            "layers": self.spec.model.layers,
            "parameters": self.parameters,
            "activations": self.spec.activations,
            "microbatches": self.spec.microbatches,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "hardware": self.hardware,
            "this_machine": self.here,
            "profile": self.source,
            "basis": self.basis,
        }
