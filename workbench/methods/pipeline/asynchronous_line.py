"""A pipeline that never drains, before its schedule is written: depths, lags and stale weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from workbench.profile.unit_costs import Sizes
from workbench.schedule import buffers as name
from workbench.schedule.action import COMPUTE, Kind

F, B = Kind.FORWARD, Kind.BACKWARD
Turn = tuple[Kind, int]
"""A forward or a backward pass, and its micro-batch."""
FP32_BYTES = 4
FIRST_LANE = 2
"""Number of the lane of a position's second stage: the first one's has none, and 1 takes turns."""


class Loan(NamedTuple):
    """Weights of a stage that another one uses, too."""

    owner: int
    borrower: int
    nbytes: int
    """Of those that are trained."""
    frozen: int = 0
    """Bytes of others, which are copied once."""


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """The pipeline."""

    label: str
    """For titles and records."""
    positions: Sequence[int]
    """Position of each stage."""
    depths: Sequence[int]
    """Slots between the forward and the backward pass of a micro-batch, of each stage; 0 for the
    last one."""
    micros: int
    """Micro-batches of an update."""
    samples: int
    """Rows of a micro-batch."""
    sizes: Sizes
    """Of stages as units."""
    recompute: bool = True
    """Whether stages compute activations again, but for the last one."""
    stashes: bool = False
    """Whether a backward pass reads the weights that its forward pass read."""
    predicts: bool = False
    """Whether a forward pass reads a prediction of the weights of its backward pass."""
    nesterov: bool = False
    """Whether, with `predicts`, one whose weights lack no update looks one ahead."""
    averages: bool = False
    """Whether states have a mean of squared steps, of the size of the weights."""
    update_bytes: Sequence[int] = ()
    """Memory that the update of each stage works in; none where they are not given."""
    predict_bytes: Sequence[int] = ()
    """Memory that a prediction of each stage's weights works in, alike."""
    loans: Sequence[Loan] = ()
    """Owners in front of their borrowers."""
    passes: Sequence[Sequence[Turn]] = ()
    """Passes of each stage in a step, for pipelines that drain with each step, whose end (the norm,
    gradients of shared weights) is not in their schedule."""

    @property
    def lends(self) -> Sequence[Loan]:
        """Loans with messages in the schedule."""
        return () if self.passes else [loan for loan in self.loans if loan.nbytes]

    def turns(self, stage: int) -> Sequence[Turn]:
        """Passes of a stage in a step, those of earlier steps' micro-batches among them."""
        if self.passes:
            return self.passes[stage]
        depth, micros = self.depths[stage], self.micros
        pairs = (((F, slot), (B, (slot - depth) % micros)) for slot in range(micros))
        return [turn for pair in pairs for turn in pair]

    def last(self, stage: int) -> int:
        """The micro-batch whose backward pass is a step's last one."""
        return self.passes[stage][-1][1] if self.passes else self.micros - 1

    def late(self, loan: Loan) -> int:
        """Updates that a borrowed weight lacks beside those that the borrower's own lack."""
        behind = self.lag(loan.owner, self.micros - 1)
        return behind - self.lag(loan.borrower, self.micros - 1)

    def lag(self, stage: int, micro: int) -> int:
        """Steps between the forward and the backward pass of a micro-batch."""
        return 0 if self.passes else (micro + self.depths[stage]) // self.micros

    def stale(self, stage: int, micro: int) -> int:
        """Updates that a forward pass lacks (spec 1.11: the closed form)."""
        return 0 if self.passes else max(0, -(-(self.depths[stage] - micro) // self.micros))

    def predicted(self, stage: int, micro: int) -> range | None:
        """Micro-batches of a step that read one prediction, this one among them; None where it
        reads the weights themselves."""
        ahead = self.stale(stage, micro)
        if not self.predicts or not (ahead or self.nesterov):
            return None
        same = [other for other in range(self.micros) if self.stale(stage, other) == ahead]
        return range(same[0], same[-1] + 1)

    def holds_predicted(self, stage: int) -> bool:
        """Whether backward passes read predictions, too: they are stashed, or graphs have them."""
        return self.stashes or not self.recompute or not self.depths[stage]

    def versions(self, stage: int) -> int:
        """Copies of a stage's weights; an update that measures how far they have moved needs one
        more."""
        older = self.stale(stage, 0) if self.stashes and not self.predicts else 0
        return 1 + older + (older > 0 and self.averages)

    def copy_bytes(self, stage: int) -> int:
        """Bytes of a copy of a stage's weights as they are updated, fp32, and of borrowed ones."""
        borrowed = sum(loan.nbytes + loan.frozen for loan in self.loans if loan.borrower == stage)
        full = FP32_BYTES * self.sizes.cost(stage, self.samples).parameters
        return max(full, self.sizes.weight_bytes(stage)) + borrowed

    def copies(self, stage: int) -> int:
        """Steps of which a stage holds the input of a micro-batch at a time."""
        return 1 if self.passes else self.depths[stage] // self.micros + 1

    def keeps(self, stage: int, micro: int) -> str:
        """The buffer that a forward pass leaves for the backward pass."""
        again = self.recompute and self.depths[stage]
        return (name.checkpoint if again else name.kept)(stage, micro)

    @cached_property
    def lanes(self) -> list[str]:
        """Lane of each stage."""
        seen: dict[int, int] = {}
        found = []
        for at in self.positions:
            seen[at] = number = seen.get(at, FIRST_LANE - 2) + 1
            found.append(COMPUTE if number == 1 else f"{COMPUTE}.{number}")
        return found
