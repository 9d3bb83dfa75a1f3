"""``workbench aceso cost`` and ``search``: what people and programs get, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.aceso.cases import golden
from workbench.cli import main
from workbench.methods.aceso.search import Found

NAME = "small_gpt_1_3B_4gpu_4stages"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(golden()[NAME])
    return path


def test_cost_in_json_has_the_keys_that_programs_read(plan: Path, capsys) -> None:
    assert main(["aceso", "cost", str(plan), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["iteration_ms"] == pytest.approx(58760.92, abs=0.01)
    assert told["memory_mb"] == pytest.approx(11976.22, abs=0.01)
    assert set(told["stages"][0]) == {
        "iteration_ms", "memory_mb", "normal_mb", "reserved_mb", "forward_ms", "backward_ms",
        "recompute_ms", "in_ms", "out_ms", "reshard_ms",
    }  # fmt: skip
    assert told["stages"][1]["memory_mb"] == pytest.approx(11940.64, abs=0.01)
    assert told["stages"][1]["normal_mb"] == pytest.approx(10660.64, abs=0.01)


def test_search_saves_the_plan_that_it_tells_of(tmp_path: Path, capsys) -> None:
    words = ["aceso", "search", "--memory-limit", "12000", "--start-num-stages", "4",
             "--config-save-path", str(tmp_path / "plans")]  # fmt: skip
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"]
    assert told["iteration_ms"] == pytest.approx(58760.92, abs=0.01)
    assert Path(told["plan"]).read_text() == golden()[NAME]
    assert main(words) == 0
    table = capsys.readouterr().out
    assert "58,760.92 ms an iteration of 512 samples" in table
    assert [path.name for path in (tmp_path / "plans").iterdir()] == [Path(told["plan"]).name]
    assert main([*words, "--initial-point", told["plan"], "--max-num-plans", "5"]) == 0


def test_a_seed_draws_the_order_of_moves(tmp_path, capsys) -> None:
    words = ["aceso", "search", "--start-num-stages", "3", "--end-num-stages", "3", "--json",
             "--max-num-plans", "60", "--config-save-path", str(tmp_path)]  # fmt: skip

    def curve(*more: str) -> list[list[float]]:
        assert main([*words, *more]) == 0
        return json.loads(capsys.readouterr().out)["curve"]

    drawn = [curve("--random-order-actions", "--seed", seed) for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert curve() == curve("--seed", "2") not in drawn


WRONG = {
    "nothing fits": (["search", "--memory-limit", "1000", "--max-num-plans", "30"],
                     "nothing fits in 1,000 MB a GPU: the nearest plan"),
    "stages": (["search", "--end-num-stages", "5"], "--end-num-stages is 5; it must be from 1 to"),
    "samples": (["search", "--micro-batch-size", "0"], "--micro-batch-size has 0"),
    "profiled": (["search", "--micro-batch-size", "3"], "no micro-batch of 3 samples is profiled"),
    "size": (["search", "--model-size", "13B"], "has no profile of gpt_13B; it has gpt_1_3B"),
    "unknown": (["search", "--model-size", "9B"], "the size is '9B'; gpt has 350M"),
    "batch": (["search", "--global-batch-size", "0"], "the global batch is 0"),
    "depth": (["search", "--num-layers", "0"], "num_layers is 0"),
    "folder": (["search", "--profiled-time-path", "nowhere"], "there is no profile database"),
    "margin": (["search", "--peak-mem-in-backward", "nan"], "--peak-mem-in-backward is nan"),
    "gone": (["search", "--op-group-size", "2"], "--op-group-size has no meaning"),
    "plan": (["cost", "absent.json"], "absent.json cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_sentence_and_writes_nothing(name, tmp_path, monkeypatch, capsys):
    words, told = WRONG[name]
    monkeypatch.chdir(tmp_path)
    if words[0] == "search":
        words = [*words, "--config-save-path", str(tmp_path / "plans")]
    assert main(["aceso", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert told in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_plan_for_other_devices_or_samples_is_refused(plan: Path, capsys) -> None:
    assert main(["aceso", "cost", str(plan), "--num-gpus-per-node", "8"]) == 2
    assert "num_gpus adds up to 4; there are 1 x 8" in capsys.readouterr().err
    text = plan.read_text().replace('"micro_batch_size": 1', '"micro_batch_size": 16')
    plan.write_text(text)
    assert main(["aceso", "cost", str(plan)]) == 2
    assert "no profile of 16 samples a device, tp 1" in capsys.readouterr().err


def test_ctrl_c_prints_and_saves_the_best_plan_so_far(tmp_path, monkeypatch, capsys) -> None:
    told = []

    def interrupt(self: object, count: int, found: Found) -> None:
        told.append((count, found.explored))
        if count == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("workbench.cli.aceso.search._Progress.__call__", interrupt)
    words = ["aceso", "search", "--memory-limit", "12000", "--config-save-path", str(tmp_path)]
    assert main(words) == 130
    out, err = capsys.readouterr()
    assert "interrupted; the best plan so far" in err
    assert told[-1] == (3, 0)
    (path,) = tmp_path.iterdir()
    assert str(path) in out
    assert len(json.loads(path.read_text())["num_gpus"]) == 3
    monkeypatch.undo()
    assert main([*words, "--initial-point", str(path), "--start-num-stages", "3",
                 "--end-num-stages", "3", "--max-num-plans", "20"]) == 0  # fmt: skip


FLAG = '"algo_of_each_op": [\n        [\n            '
FAULTS = {
    "NaN": ('"global_batch_size": 512', '"global_batch_size": NaN', "NaN is no number"),
    "cut": ('"num_gpus": [', '"num_gpus": ', "is not JSON"),
    "flag": (f"{FLAG}0", f"{FLAG}2", "algo_of_each_op[0][0] is 2; it must be 0 or 1"),
    "depth": ('"num_layers": 24', '"num_layers": 30', "gpt of 30 layers has 393 operators"),
    "batch": ('"global_batch_size": 512', '"global_batch_size": -5', "global_batch_size is -5"),
    "micro": ('"micro_batch_size": 1', '"micro_batch_size": 513', "micro_batch_size is 513"),
    "size": ('"hidden_size": 2048', '"hidden_size": 99999999', "hidden_size is 99999999"),
}
"""What of a plan's file is replaced, by what, and what is told."""
DOORS = {
    "cost": ["aceso", "cost", "plan.json"],
    "search": ["aceso", "search", "--initial-point", "plan.json", "--config-save-path", "plans"],
    "run": ["run", "-m", "aceso", "--plan", "plan.json", "--ranks", "4", "--results", "results"],
}
WIDER = '"hidden_size": 2048', '"hidden_size": 4096'
REFUSED = {
    **{f"{door}, {fault}": (DOORS[door], *FAULTS[fault]) for door in DOORS for fault in FAULTS},
    "cost, wider": (DOORS["cost"], *WIDER, "the profiles of gpt_1_3B are of 2048"),
    "search, wider": (DOORS["search"], *WIDER, "hidden_size is 4096; it must be 2048"),
    "run, compiled": (
        [*DOORS["run"], "--compile", "on", "--device", "cpu"], "{", "{",
        "compile is on, and the device is cpu",
    ),
    "run, fewer": ([*DOORS["run"], "--ranks", "2"], "{", "{", "ranks is 2; the plan is for 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_every_door_refuses_a_wrong_plan_and_writes_nothing(
    name, plan, tmp_path, monkeypatch, capsys
) -> None:
    """In one sentence with the number at fault."""
    words, old, new, told = REFUSED[name]
    text = plan.read_text()
    assert old in text
    plan.write_text(text.replace(old, new, 1))
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert not out
    assert told in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
