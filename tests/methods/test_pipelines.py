"""Pipelines of every order train as torch's own loop over the user's module does."""

from __future__ import annotations

from itertools import product

import pytest

from tests.methods import plain
from tests.methods.harness import assert_equals_plain
from tests.methods.pipelines import schedule_for, spec_for, trained
from workbench.methods.pipeline.orders import ORDERS

GRID = [
    (order, ranks, replicas, micros, recompute)
    for order, ranks, replicas, micros, recompute in product(
        ORDERS, (2, 3, 4), (1, 2), (1, 2, 3, 6), (False, True)
    )
    if not (ORDERS[order].chunked and micros % ranks)
]
EACH_PAIR = {
    ("gpipe", 2, 2, 3, False),
    ("gpipe", 4, 1, 2, True),
    ("1f1b", 3, 2, 6, True),
    ("1f1b", 2, 1, 1, False),
    ("zb-h1", 4, 1, 6, False),
    ("zb-h1", 2, 2, 2, True),
    ("zb-h1", 3, 1, 3, True),
    ("interleaved", 2, 2, 6, False),
    ("interleaved", 3, 1, 3, True),
}
"""Every pair of values once, as far as this many runs go; `make thorough` runs the whole grid."""


@pytest.mark.parametrize(
    ("order", "ranks", "replicas", "micros", "recompute"),
    [pytest.param(*one, marks=[] if one in EACH_PAIR else [pytest.mark.thorough]) for one in GRID],
)
def test_every_order_trains_exactly(order, ranks, replicas, micros, recompute, tmp_path):
    """With dropout, clipping, tied weights and random delays."""
    spec = spec_for(ranks=ranks * replicas)
    schedule = schedule_for(order, spec, ranks, micros, replicas=replicas, recompute=recompute)
    training, parameters = trained(schedule, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    norms: list[float] = []
    plain.train(spec, norms=norms)
    assert training.history.grad_norms == pytest.approx(norms, rel=1e-5)
