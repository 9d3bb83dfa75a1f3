"""Policies that Varuna's simulator, and this project's, compare. All recompute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from workbench.methods.pipeline import ideal
from workbench.methods.pipeline.orders import B, F, Pass, gpipe_as_varuna_has_it, lists
from workbench.methods.pipeline.quick import STRICT, Rule, Timed


@dataclass(frozen=True)
class Policy:
    """Lists of passes, and how ranks go through them."""

    label: str
    method: str
    """Whose look it has."""
    passes: Callable[[int, int], list[list[Pass]]]
    """Takes ranks and micro-batches."""
    rule: Rule = STRICT


def _gpipe(ranks: int, micros: int) -> list[list[Pass]]:
    return [[*gpipe_as_varuna_has_it(rank, ranks, micros)] for rank in range(ranks)]


def _one_f_one_b(ranks: int, micros: int) -> list[list[Pass]]:
    return ideal.with_recomputation(lists("1f1b", ranks, micros))


VARUNA, EARLY = partial(lists, "varuna"), Rule(early=True)
POLICIES = {
    "varuna": Policy("Varuna", "varuna", VARUNA, Rule(turns=True, early=True)),
    "varuna-list": Policy("Varuna, as listed", "varuna", VARUNA),
    "gpipe": Policy("GPipe", "gpipe", _gpipe, EARLY),
    "1f1b-late": Policy("1F1B", "1f1b", _one_f_one_b),
    "1f1b-early": Policy("1F1B, early", "1f1b", _one_f_one_b, EARLY),
}
"""Varuna's rule at run time, as this project's ranks have it: recomputations wait for no gradient
once no forward pass is left. Its list without the rule. GPipe as Varuna's simulator has it. 1F1B
that recomputes when the gradient has come, and one that recomputes before."""


def stashed(ran: Sequence[Timed]) -> int:
    """Most micro-batches whose input one rank holds, from its forward to its backward pass."""
    held, most = Counter(), 0
    changes = [(t.start_s, 1, t.rank) for t in ran if t.each.kind is F]
    changes += [(t.end_s, -1, t.rank) for t in ran if t.each.kind is B]
    for _, change, rank in sorted(changes):
        held[rank] += change
        most = max(most, held[rank])
    return most
