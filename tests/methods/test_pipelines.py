"""Pipelines of every order train as torch's own loop over the user's module does."""

from __future__ import annotations

from itertools import product

import pytest

from tests.methods import plain
from tests.methods.harness import assert_equals_plain
from tests.methods.pipelines import schedule_for, spec_for, trained
from workbench.methods.pipeline.orders import ORDERS

GRID = [
    (order, ranks, replicas, micros, activations)
    for order, ranks, replicas, micros, activations in product(
        ORDERS, (2, 3, 4), (1, 2), (1, 2, 3, 6), ("keep", "recompute", "checkpoint")
    )
    if not (ORDERS[order].chunked and micros % ranks)
    if not (ORDERS[order].halved and activations == "checkpoint")
]
EACH_PAIR = {
    ("gpipe", 4, 1, 2, "recompute"),
    ("1f1b", 3, 2, 6, "checkpoint"),
    ("zb-h1", 4, 1, 6, "keep"),
    ("zb-h1", 2, 2, 2, "recompute"),
    ("interleaved", 2, 2, 6, "keep"),
}
"""Every value, beside the runs of test_double.py; `make thorough` runs the whole grid."""


@pytest.mark.parametrize(
    ("order", "ranks", "replicas", "micros", "activations"),
    [pytest.param(*one, marks=[] if one in EACH_PAIR else [pytest.mark.thorough]) for one in GRID],
)
def test_every_order_trains_exactly(order, ranks, replicas, micros, activations, tmp_path):
    """With dropout, clipping, tied weights and random delays."""
    spec = spec_for(ranks=ranks * replicas)
    schedule = schedule_for(order, spec, ranks, micros, replicas=replicas, activations=activations)
    training, parameters = trained(schedule, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    norms: list[float] = []
    plain.train(spec, norms=norms)
    assert training.history.grad_norms == pytest.approx(norms, rel=1e-5)


def test_a_pipeline_goes_on_from_its_checkpoint_under_another_shape(tmp_path):
    """Two replicas of two stages without clipping, then three stages of another order."""
    spec = spec_for(ranks=4, clip=None, steps=2, save_every=2)
    trained(schedule_for("1f1b", spec, 2, 3, replicas=2), spec, tmp_path / "first")
    longer = spec_for(ranks=3, clip=None, steps=4, save_every=0, start_from="first")
    schedule = schedule_for("zb-h1", longer, 3, 4)
    training, parameters = trained(schedule, longer, tmp_path / "second")
    assert len(training.history.step_seconds) == 2
    assert_equals_plain(longer.with_(start_from=""), training, parameters)
