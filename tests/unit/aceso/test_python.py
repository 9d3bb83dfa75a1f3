"""A plan that is searched for from Python."""

from __future__ import annotations

import json
import re

import pytest

import workbench
from workbench.cli.aceso import main
from workbench.methods.aceso.plan import load_plan

LIMIT = 12000
ASKED = {"model": "gpt", "size": "1_3B", "ranks": 4, "device_memory": f"{LIMIT}MiB", "stages": 4}


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return workbench.search(**ASKED, results=tmp_path_factory.mktemp("results"))


def test_it_is_the_plan_of_the_command_line(plan, tmp_path, capsys):
    words = f"search --memory-limit {LIMIT} --start-num-stages 4 --end-num-stages 4 --json"
    assert main([*words.split(), "--config-save-path", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert plan.iteration_ms == told["iteration_ms"] == pytest.approx(58_760.92, abs=0.01)
    assert (plan.memory_mb, plan.bound_ms, plan.gap) == (
        told["memory_mb"], told["bound_ms"], told["gap"],
    )  # fmt: skip
    file = plan.save(tmp_path / "deep" / "plan.json")
    assert file.read_text() == (tmp_path / plan.file.name).read_text()
    assert load_plan(plan.file) == plan.plan


def test_it_shows_itself(plan):
    """A row a stage, the slowest of which is the iteration; in a notebook with its picture."""
    table = plan.table()
    assert list(table["gpus"]) == [1, 1, 1, 1]
    assert table["operators"].sum() == len(plan.plan.subject.operators()) == 315
    assert max(table["iteration_ms"]) == plan.iteration_ms
    assert max(table["memory_mb"]) == plan.memory_mb <= LIMIT
    shown = plan._repr_html_()
    assert re.search(r"gpt_1_3B: 58,760\.92 ms .* at most \d+\.\d% over the best plan", shown)
    assert shown.count("<svg") == 1
    assert shown.count("<tr") == 5


def test_a_run_takes_it_as_its_plan(plan, tmp_path):
    """Its devices are counted, so it was read."""
    with pytest.raises(ValueError, match="ranks is 3; the plan is for 4 devices"):
        workbench.run(method="aceso", plan=plan, ranks=3, results=tmp_path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"device_memory": "600MiB"}, r"nothing fits in 600 MB a GPU: the nearest plan, .* more"),
        ({"mode": "best"}, "mode is 'best'; it must be faithful or ours"),
        ({"model": "bert"}, "model is 'bert'; it must be one of gpt, t5, resnet, scale-layer"),
        ({"nodes": 3}, "ranks is 4; it must be a multiple of the 3 nodes"),
        ({"stages": 9}, "num-stages is 9"),
        ({"database": "nowhere"}, "there is no profile database"),
        ({"device_memory": "12GB?"}, "is not an amount of memory"),
    ],
)
def test_a_search_that_cannot_be_is_refused(changes, told, tmp_path):
    """In one sentence, and nothing is written."""
    with pytest.raises(ValueError, match=told) as refused:
        workbench.search(**{**ASKED, "plans": 50, **changes}, results=tmp_path / "results")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "results").exists()
