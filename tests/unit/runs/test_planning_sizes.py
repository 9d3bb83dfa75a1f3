"""Answers of methods that choose their micro-batches: from the profiles that a run would take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baselines.swapping import planner as swapping
from tests.methods.plain import made_up_profile, spec_for
from workbench import cli
from workbench.methods.harmony import planner as harmony
from workbench.profile import several
from workbench.profile import store as profiles
from workbench.runs import planning
from workbench.runs.store import Store
from workbench.ui.planner.control import Question
from workbench.ui.planner.work import PlannerWork

SMALL = {"device_memory": 500_000, "batch": 16, "ranks": 2}
CLI = (
    "-l", "5", "--hidden", "32", "--heads", "4", "--seq", "16", "--vocab", "256", "-b", "16",
    "--ranks", "2", "--device-memory", "500000", "--device", "cpu",
)  # fmt: skip


def measured(spec):
    found = made_up_profile(spec)
    return replace(found, hardware=replace(found.hardware, source="measured"))


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch):
    """A results folder with profiles of these sizes: any number of samples takes as long as one."""

    def hold(*sizes: int) -> None:
        def stored_profile(spec, results, echo=None):
            return measured(spec) if spec.microbatch in sizes else None

        monkeypatch.setattr(several, "stored_profile", stored_profile)
        monkeypatch.setattr(profiles, "stored_profile", stored_profile)

    return hold


@pytest.mark.parametrize("method", ["harmony-pp", "harmony-dp", "pp-swap", "dp-swap"])
def test_the_answer_is_the_plan_of_a_run(stored, method: str, tmp_path: Path) -> None:
    stored(1, 4, 16)
    spec = spec_for(method=method, **SMALL)
    found = planning.answer(spec, Store(tmp_path))
    sizes = {size: measured(spec.with_(batch=size)) for size in (1, 4, 16)}
    module = harmony if method.startswith("harmony") else swapping
    mode = "pp" if "pp" in method else "dp"
    run = module.plan(spec, sizes, mode=mode)
    assert found.plan.settings == run.settings
    assert found.plan.step_seconds == run.step_seconds
    assert found.source == "measured"
    assert not any("in proportion" in note for note in found.plan.notes)

    stored(16)
    alone = planning.answer(spec, Store(tmp_path))
    assert alone.plan.step_seconds != run.step_seconds
    assert alone.plan.notes[-1].startswith("known are the costs of micro-batches of 16 samples")
    stored()
    published = planning.answer(spec, Store(tmp_path), machine="v100-32gb")
    assert published.source == "published"
    assert "a run measures 1, 4 as well" in published.plan.notes[-1]


@pytest.mark.parametrize("method", ["data-parallel", "gpipe", "torch-gpipe", "harmony-dp"])
def test_methods_that_are_compared_have_costs_of_one_origin(stored, method, tmp_path) -> None:
    """A micro-batch that was not measured is in proportion to one that was, and no estimate."""
    stored(4)
    spec = spec_for(method=method, batch=16, ranks=2)
    found = planning.answer(spec, Store(tmp_path))
    assert found.source == "measured"
    assert any("in proportion" in note for note in found.plan.notes)
    unit = several.nearest_profile(spec, tmp_path).units[1]
    assert unit.backward_s == 4 * measured(spec).units[1].backward_s
    stored()
    assert several.nearest_profile(spec, tmp_path) is None


def test_the_text_names_micro_batches_and_packs(stored, tmp_path: Path, capsys) -> None:
    stored(1, 4, 16)
    assert cli.main(["plan", "-m", "harmony-pp", *CLI, "--results", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    spec = spec_for(method="harmony-pp", **SMALL)
    found = planning.answer(spec, Store(tmp_path)).plan.settings
    assert (
        f"micro-batches of {found['forward_size']} samples forward, {found['backward_size']} "
        "backward" in told
    )
    assert f"backward packs, by their units: {found['backward_packs']}\n" in told


def test_the_page_answers_the_same(stored, tmp_path: Path) -> None:
    stored(1, 4, 16)
    spec = spec_for(method="harmony-pp", **SMALL)
    question = Question(spec=spec, method="harmony-pp", machine=None)
    rows = PlannerWork(Store(tmp_path)).work_on(question, 0)["rows"]
    told = next(row for row in rows if row["method"] == "harmony-pp")
    found = planning.answer(spec, Store(tmp_path)).plan
    assert told["step_seconds"] == found.step_seconds
    assert told["settings"] == {"window": None, "resident": None, **found.settings}
