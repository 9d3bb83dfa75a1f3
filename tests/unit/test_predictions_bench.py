"""The benchmark of predictions draws different settings, and asks the plan's own range."""

import pytest

from benchmarks import predictions
from tests.unit.test_offload_bench import ORIGIN, record_of
from workbench.runs.store import Store


@pytest.mark.parametrize(("spread", "inside"), [(0.1, False), (0.3, True)])
def test_a_run_is_inside_the_range_of_its_plan_or_not(spread, inside, monkeypatch, tmp_path):
    specs = list(predictions.settings(8, seed=1, ranks=2))
    assert len(set(specs)) == 8
    record = record_of(
        specs[0], step_seconds=[9.0] * 6 + [1.0, 1.2, 2.0], provenance={"cpu": "a", **ORIGIN},
        predicted={"step_seconds": 1.0, "spread": spread},
    )  # fmt: skip
    monkeypatch.setattr(predictions, "run", lambda spec, store: record)
    row = predictions.compared(predictions.measured(specs[0], Store(tmp_path)))
    assert (row["ratio"], row["inside"]) == (pytest.approx(1 / 1.2), inside)
