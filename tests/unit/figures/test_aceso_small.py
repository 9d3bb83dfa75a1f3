"""The exhibit of Aceso's small settings: its plan trains as one process does."""

from __future__ import annotations

import json

import pytest

from tests.unit.figures.records import record
from tests.unit.figures.test_varuna_exhibits import judged, words_in
from workbench.exhibits import find, open_exhibit
from workbench.exhibits.aceso import small
from workbench.exhibits.aceso.found import ACTUAL
from workbench.figures.rows import MEASURED, PUBLISHED, SIMULATED
from workbench.figures.verdict import FAILS, HOLDS
from workbench.methods.aceso import settings
from workbench.runs.resolve import settled
from workbench.runs.store import Store


def test_losses_are_of_the_published_plan_and_of_one_process(tmp_path, monkeypatch):
    exhibit, session = find("aceso_small"), open_exhibit("aceso_small", "tiny", tmp_path)
    assert exhibit.system == "Aceso"
    assert list(session.preview()["run"])[:2] == ["Aceso", "one device"]
    plan, alone = exhibit.specs(session.size)
    kept = json.loads((tmp_path / "plans" / f"{plan.options.plan}.json").read_text())
    assert (sum(kept["num_ops_in_each_stage"]), kept["hidden_size"]) == (315, 16)
    assert (plan.model, plan.batch, alone.method) == (alone.model, alone.batch, "plain")
    assert settled(plan, tmp_path) == plan, "nothing is left open"
    at = exhibit.opened("tiny", Store(tmp_path), "stdlib", "")
    records = [record(plan, losses=[5.0, 4.5]), record(alone, losses=[5.0, 4.5])]
    rows = exhibit.table(at, records)
    assert judged(session, rows) == [HOLDS] * 4
    words = words_in(session.draw(rows))
    assert small.ALONE in words
    assert set(rows["source"]) <= {PUBLISHED, SIMULATED, MEASURED}
    assert all(source in words for source in set(rows["source"]))
    assert set(rows["how"]) - {""}
    assert "not run" in words_in(session.draw(exhibit.table(at, [])))
    other = exhibit.table(at, [records[0], record(alone, losses=[5.0, 4.6])])
    assert judged(session, other)[-1] == FAILS
    monkeypatch.delattr(settings, "answered")
    assert len(exhibit.table(at, records)) == len(rows), "searches are kept"


def test_published_widths_train_where_there_are_four_gpus(tmp_path, monkeypatch):
    exhibit = find("aceso_small")
    dials = exhibit.dials("paper")
    assert exhibit.specs(dials) == []
    monkeypatch.setattr(small.host, "gpus", lambda: (object(),) * 4)
    (spec,) = exhibit.specs(dials)
    assert (spec.model.hidden, spec.batch, spec.microbatches, spec.dtype) == (
        2048,
        512,
        512,
        "bf16",
    )
    rows = [*small._measured(record(spec, 59.0), dials)]
    (time,) = (row for row in rows if (row["quantity"], row["label"]) == (small.TIME, ACTUAL))
    assert time["value"] == pytest.approx(59000)
