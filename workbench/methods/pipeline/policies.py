"""Policies that Varuna's simulator, and this project's, compare. All recompute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from workbench.methods.pipeline import ideal
from workbench.methods.pipeline.jitter import Jitter
from workbench.methods.pipeline.orders import B, F, Pass, R, gpipe_as_varuna_has_it, lists
from workbench.methods.pipeline.quick import STRICT, Links, Rule, Timed, end_s, timeline

RANKS, MICROS = 4, 16
SECONDS, SEND_S = {F: 0.050, R: 0.050, B: 0.100}, 0.005
"""Of a pass, and of a message; all ranks are on one host, as in the reference."""
SETTINGS = {"0/0": (0.0, 0.0), "2/10": (0.002, 0.010), "5/40": (0.005, 0.040)}
"""Standard deviations of passes and messages in ms, and in seconds."""


@dataclass(frozen=True)
class Policy:
    """Lists of passes, and how positions go through them."""

    label: str
    method: str
    """Whose look it has."""
    passes: Callable[[int, int], list[list[Pass]]]
    """Takes a number of positions and one of micro-batches."""
    rule: Rule = STRICT


def _gpipe(depth: int, micros: int) -> list[list[Pass]]:
    return [[*gpipe_as_varuna_has_it(position, depth, micros)] for position in range(depth)]


def _one_f_one_b(depth: int, micros: int) -> list[list[Pass]]:
    return ideal.with_recomputation(lists("1f1b", depth, micros))


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


def simulated(policy: Policy, jitter: Jitter, scale: float) -> float:
    """A step with as many places for messages as schedules have; `scale` of all seconds but the
    jitter."""
    seconds = {kind: value * scale for kind, value in SECONDS.items()}
    links = Links(seconds=[SEND_S * scale] * (RANKS - 1), places=True)
    draws = jitter.draws(RANKS, MICROS)
    return end_s(
        timeline(policy.passes(RANKS, MICROS), [seconds] * RANKS, links, policy.rule, draws)
    )


def stashed(ran: Sequence[Timed]) -> int:
    """Most micro-batches whose input one position holds, from its forward to its backward pass."""
    held, most = Counter(), 0
    changes = [(t.start_s, 1, t.position) for t in ran if t.each.kind is F]
    changes += [(t.end_s, -1, t.position) for t in ran if t.each.kind is B]
    for _, change, position in sorted(changes):
        held[position] += change
        most = max(most, held[position])
    return most
