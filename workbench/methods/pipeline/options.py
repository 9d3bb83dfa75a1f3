"""Options of pipelines: replicas, which units lie in which stage, and who chooses these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.core.division import even_share
from workbench.core.spec import RunSpec
from workbench.methods.options import Auto, Chunks, Staged

VARUNA = "varuna"


@dataclass(frozen=True, kw_only=True)
class Options(Staged):
    """Options of all orders."""

    replicas: int | Auto = "auto"
    """Pipelines side by side, each on its share of the batch: of the ranks, so many hold each
    stage. Shares differ by at most one sample, and so do micro-batches. ``auto`` is one, or as many
    as are fastest where the shape is chosen (`micro`)."""

    checkpointed: ClassVar[bool] = True
    uneven: ClassVar[bool] = True
    chunks: ClassVar[int] = 1
    """Stages of each rank."""

    @property
    def copies(self) -> int:
        """Pipelines side by side where nobody chooses."""
        return 1 if self.replicas == "auto" else self.replicas

    def check(self, spec: RunSpec) -> None:
        super().check(spec)
        if self.chooses(spec):
            return
        if self.copies < 1 or spec.ranks % self.copies:
            raise ValueError(f"replicas is {self.replicas}; it must divide the {spec.ranks} ranks")
        if spec.batch < self.copies:
            raise ValueError(
                f"a batch of {spec.batch} leaves some of {self.copies} replicas without a "
                "sample; give at least one for each, or use fewer replicas"
            )
        if spec.microbatches > (most := self.samples(spec)):
            raise ValueError(
                f"a batch of {spec.batch} does not divide into {spec.microbatches} micro-batches "
                f"on each of {self.copies} replicas; they have at most {most} samples, so use at "
                f"most {most} micro-batches"
            )

    def samples(self, spec: RunSpec) -> int:
        """Samples of a step that the largest replica has."""
        return -(-spec.batch // self.copies)

    def micro_sizes(self, spec: RunSpec) -> set[int]:
        """Samples of the micro-batches of a run, which differ by at most one."""
        ends = 0, spec.microbatches - 1
        counts = {self.samples(spec), spec.batch // self.copies}
        spans = (even_share(count, micro, spec.microbatches) for count in counts for micro in ends)
        return {end - first for first, end in spans} - {0}

    def chooses(self, spec: RunSpec) -> bool:
        """Whether the planner chooses what of the pipeline's shape is not given (choosing.py)."""
        return False


@dataclass(frozen=True, kw_only=True)
class Interleaved(Chunks, Options):
    """Options of orders with several stages a rank."""


@dataclass(frozen=True, kw_only=True)
class Recomputing(Options):
    """Options of orders whose lists say when activations are computed again. Where `microbatches`
    is not given, the planner chooses the shape."""

    micro: int | Auto = "auto"
    """Samples of a micro-batch, where `microbatches` does not say how many there are; ``auto`` is
    what is fastest."""
    order: Literal["varuna", "auto"] = "varuna"
    """Order of passes; ``auto`` is the fastest of all orders."""

    checkpointed: ClassVar[bool] = False
    tries_parts: ClassVar[bool] = False

    def check(self, spec: RunSpec) -> None:
        super().check(spec)
        if spec.activations not in ("auto", "recompute"):
            raise ValueError(
                f"activations is {spec.activations!r}; {spec.method} computes them again, "
                "but for those of the last stage: give recompute or auto"
            )
        if not self.chooses(spec) and (self.micro, self.order) != ("auto", VARUNA):
            raise ValueError(
                f"micro is {self.micro!r} and order {self.order!r}; where microbatches is given, "
                f"here as {spec.microbatches}, the shape is not chosen: leave one of them out"
            )
        if not self.chooses(spec):
            return
        for name, most in (("replicas", spec.ranks), ("micro", spec.batch)):
            value = getattr(self, name)
            if value != "auto" and not 1 <= value <= most:
                raise ValueError(f"{name} is {value}; it must be 1 to {most}, or auto")

    def micro_sizes(self, spec: RunSpec) -> set[int]:
        if not self.chooses(spec):
            return super().micro_sizes(spec)
        return set() if self.micro == "auto" else {self.micro}

    def chooses(self, spec: RunSpec) -> bool:
        return spec.microbatches == 1


@dataclass(frozen=True, kw_only=True)
class Halved(Options):
    """Options of orders with halved backward passes."""

    halved: ClassVar[bool] = True
    checkpointed: ClassVar[bool] = False

    def check(self, spec: RunSpec) -> None:
        super().check(spec)
        if spec.compile == "on":
            raise ValueError(
                f"compile is on; {spec.method} halves backward passes, and a compiled layer has "
                "no halves: leave it at auto or off"
            )
