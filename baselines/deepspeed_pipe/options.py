"""Options of DeepSpeed's pipeline: those of our own pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.core.spec import RunSpec
from workbench.methods.pipeline import options


@dataclass(frozen=True, kw_only=True)
class Options(options.Options):
    """Replicas and stages."""

    checkpointed: ClassVar[bool] = False

    def check(self, spec: RunSpec) -> None:
        super().check(spec)
        if spec.model.rows:
            raise ValueError(
                f"rows is {spec.model.rows!r}; DeepSpeed's pipeline takes the plain mean of its "
                "micro-batches' losses, which rows weigh by their labels"
            )
        pieces = spec.microbatches * self.copies
        if spec.batch % pieces:
            raise ValueError(
                f"DeepSpeed gives every rank as many samples: a batch of {spec.batch} does not "
                f"divide into {pieces} micro-batches of {self.copies} replicas"
            )
