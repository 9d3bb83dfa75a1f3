"""``workbench aceso small`` and its like: tables, and files as the artifact writes them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.unit.aceso.cases import golden
from workbench.cli import main
from workbench.methods.aceso import settings
from workbench.methods.aceso.options import check
from workbench.methods.aceso.plan import load_plan
from workbench.published.aceso import DATABASE

GPT = ["--model-name", "gpt", "--profiled-time-path", str(DATABASE)]


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [*csv.reader(file)]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Path:
    """Results of the small setting, of GPT alone, which trains nothing."""
    results = tmp_path_factory.mktemp("results")
    assert main(["aceso", "small", *GPT, "--results", str(results)]) == 0
    return results


def test_tables_have_the_artifacts_columns_and_a_search_is_made_once(found, monkeypatch, capsys):
    monkeypatch.delattr(settings, "answered")
    assert main(["aceso", "small", *GPT, "--results", str(found)]) == 0
    told = capsys.readouterr().out
    for title in ("End-to-end Throughput", "Search Cost", "Time Prediction (ms)",
                  "Memory Prediction (normal + extra)"):  # fmt: skip
        assert f"gpt: {title}" in told
    assert "predict  58,760.92" in told
    tables = {path.stem: rows(path) for path in (found / "aceso/small/results").iterdir()}
    assert tables["e2e_thpt_small_gpt"] == [
        ["size", "1_3B"], ["megatron", "6.95"], ["alpa", "6.97"], ["aceso", "8.71"],
        ["ours", "8.86"],
    ]  # fmt: skip
    assert tables["e2e_norm_thpt_small_gpt"][3] == ["aceso", "1.25"]
    assert [row[0] for row in tables["search_cost_small_gpt"]] == ["size", "alpa", "aceso", "ours"]
    assert tables["perf_model_time_small_gpt"][1:] == [["actual", "-"], ["predict", "58760.92"]]
    memory = tables["perf_model_mem_small_gpt"][1:]
    assert memory == [
        ["actual", "-"],
        ["predict (norm)", "10696.22"],
        ["predict (extra)", "1280.00"],
    ]


def test_three_plans_are_saved_and_each_can_train(found):
    configs = found / "aceso/small/aceso/configs"
    saved = sorted((configs / "top_configs").iterdir())
    assert [len(load_plan(path).stages) for path in saved] == [2, 3, 4]
    for path in saved:
        check(load_plan(path), 4)
    assert saved[-1].read_text() == golden()["small_gpt_1_3B_4gpu_4stages"]
    head, *stages = rows(configs / "csv" / f"info_{saved[-1].stem}.csv")
    assert head == ["stage-index", "time", "memory(total)", "memory(normal)", "memory(reserved)"]
    assert stages[1] == ["stage-1", stages[1][1], "11940.64", "10660.64", "1280.00"]
    assert max(float(row[1]) for row in stages) == 58760.92


def test_a_search_writes_how_it_went(found):
    """Times of trials grow, and the best of them is the plan's; improving trials are counted."""
    logs = found / "aceso/small/aceso/logs"
    stem = "gpt_1_3B_4stages_init_balance_7hops.csv"
    head, *trials = rows(logs / "trends" / stem)
    assert head == ["search_time (s)", "config time (ms)"]
    seconds = [float(row[0]) for row in trials]
    assert seconds == sorted(seconds)
    assert min(float(row[1]) for row in trials) == pytest.approx(58760.92, abs=0.01)
    targets, hops = rows(logs / "trends" / f"distribution_{stem}")
    assert (targets[0], hops[0]) == ("num_targets", "num_hops")
    assert len(targets) == len(hops) > 1
    assert rows(logs / "gpt_1_3B_summary.csv")[0] == ["search_cost"]


def test_a_search_and_a_cost_write_these_files_too(tmp_path, capsys):
    plan, info = tmp_path / "plan.json", tmp_path / "info.csv"
    plan.write_text(golden()["small_gpt_1_3B_4gpu_2stages"])
    assert main(["aceso", "cost", str(plan), "--save-to-csv", str(info)]) == 0
    assert [row[0] for row in rows(info)] == ["stage-index", "stage-0", "stage-1"]
    words = ["--memory-limit", "12000", "--start-num-stages", "4", "--max-num-plans", "30"]
    logs = tmp_path / "logs"
    saved = ["--config-save-path", str(tmp_path / "plans"), "--log-path", str(logs)]
    assert main(["aceso", "search", *words, *saved]) == 0
    assert (logs / "trends" / "gpt_1_3B_4stages_init_balance_7hops.csv").is_file()


def test_an_interrupted_search_tells_its_best_plan_and_keeps_those_before(
    tmp_path, monkeypatch, capsys
):
    def interrupted(outcome, counts, effort, **more):
        settings.search(outcome, (4,), effort, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(settings, "search_ours", interrupted)
    assert main(["aceso", "small", *GPT, "--results", str(tmp_path)]) == 130
    told = capsys.readouterr().out
    assert "gpt 1_3B, ours: interrupted; the best plan so far: 58,760.92 ms" in told
    (plan,) = (tmp_path / "aceso/small/ours/configs").glob("*.json")
    assert f"plan: {plan}" in told
    assert plan.read_text() == golden()["small_gpt_1_3B_4gpu_4stages"]
    assert len([*(tmp_path / "aceso").glob("*.json")]) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["large"], "--profiled-time-path is missing: profiles of the large setting do not come"),
        (["scale", *GPT[2:]], "has no profiles of the scale setting's models"),
        (["small", "--profiled-time-path", "nowhere"], "nowhere"),
        (["small", "--size", "vast"], "vast"),
    ],
)
def test_a_setting_without_profiles_is_refused(words, told, tmp_path, capsys):
    assert main(["aceso", *words, "--results", str(tmp_path / "results")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_the_artifacts_training_flags_are_ours(tmp_path, monkeypatch, capsys):
    given: list[list[str]] = []
    monkeypatch.setattr("workbench.cli.main", lambda words: given.append(words) or 0)
    plan = tmp_path / "plan.json"
    plan.write_text(golden()["small_gpt_1_3B_4gpu_2stages"])
    words = ["aceso", "train", "--flexpipe-config", str(plan), "--fp16", "--lr-decay-iters", "100",
             "--clip-grad", "0", "--", "--hidden", "64"]  # fmt: skip
    assert main(words) == 0
    assert "--fp16 is bf16 here" in capsys.readouterr().err
    (ours,) = given
    assert ours == [
        "run", "-m", "aceso", "--plan", str(plan), "--ranks", "4", "--dtype", "bf16",
        "--steps", "3", "--lr", "0.00015", "--min-lr", "1e-05", "--lr-schedule", "cosine",
        "--set", "lr_decay_steps=100", "--warmup-steps", "1", "--weight-decay", "0.01",
        "--clip", "none", "--hidden", "64",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--DDP-impl", "local"], "--DDP-impl has no meaning: this runtime does that by itself"),
        (["--hidden-size", "64"], "--hidden-size has no meaning: the plan says it"),
        (["--lr-warmup-fraction", "1.5"], "--lr-warmup-fraction is 1.5; it must be from 0"),
        (["--train-iterations", "3"], "did you mean --train-iters?"),
    ],
)
def test_training_flags_without_meaning_are_named(words, told, tmp_path, capsys):
    plan = tmp_path / "plan.json"
    plan.write_text(golden()["small_gpt_1_3B_4gpu_2stages"])
    assert main(["aceso", "train", "--flexpipe-config", str(plan), *words]) == 2
    assert told in capsys.readouterr().err


def test_a_kept_search_that_was_changed_is_made_again(found, tmp_path):
    results = tmp_path / "results"
    (results / "aceso").mkdir(parents=True)
    kept = [*(found / "aceso").glob("*.json")]
    (changed,) = (path for path in kept if '"search": "aceso"' in path.read_text())
    for path in kept:
        told, more = path.read_text(), '"cpu_seconds": '
        told = told.replace(more, f"{more}9") if path == changed else told
        (results / "aceso" / path.name).write_text(told)
    assert main(["aceso", "small", *GPT, "--results", str(results)]) == 0
    costs = rows(results / "aceso/small/results/search_cost_small_gpt.csv")[1:]
    assert {row[0]: float(row[1]) < 90 for row in costs}["aceso"]
    assert {path.name for path in (results / "aceso").glob("*.json")} == {p.name for p in kept}
