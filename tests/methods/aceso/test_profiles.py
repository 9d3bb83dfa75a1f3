"""A model is profiled on this machine, a plan is searched in the profile, and trains."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from baselines import plain as plain_method
from tests.exactness.trained import NEAR, assert_equals
from tests.methods import plain
from tests.methods.aceso.test_training import ranks, trained  # noqa: F401
from workbench.cli import main
from workbench.core.model_spec import ModelSpec
from workbench.methods.aceso.database import BACKWARD, FORWARD, read_database
from workbench.methods.aceso.options import model_of
from workbench.methods.aceso.plan import load_plan, subject_of
from workbench.profile import shard_timing

SIZE = ["--model-size", "tiny"]


def profile(folder, *more: str) -> list[str]:
    return ["aceso", "profile-ops", *SIZE, "--tp", "1", "2", "--micro-batch-size", "2",
            "--prof-warmup-times", "1", "--prof-repeat-time", "3", "--device", "cpu",
            "--results", str(folder), "--profiled-time-path", str(folder / "csv"),
            *more]  # fmt: skip


def test_a_plan_searched_in_own_profiles_trains(ranks, tmp_path, capsys) -> None:  # noqa: F811
    ranks("")
    assert main(profile(tmp_path)) == 0
    (tmp_path / "csv" / "p2p_intra_node.csv").write_text("1,2\n5.0,6.0\n")
    capsys.readouterr()
    search = ["aceso", "search", *SIZE, "--num-gpus-per-node", "2", "--global-batch-size", "4",
              "--micro-batch-size", "2", "--start-num-stages", "2", "--profiled-time-path",
              str(tmp_path / "csv"), "--config-save-path", str(tmp_path), "--json"]  # fmt: skip
    assert main(search) == 0
    file = Path(json.loads(capsys.readouterr().out)["plan"])
    model = model_of(load_plan(file), ModelSpec(vocab=256))
    spec = plain.spec_for(method="aceso", model=model, batch=4, ranks=2, activations="auto",
                          plan=str(file), steps=3)  # fmt: skip
    found = trained(spec, tmp_path / "runs" / "run")
    alone = spec.with_(method="plain", ranks=1, activations="keep")
    assert_equals(found, trained(alone, tmp_path / "alone", plain_method), NEAR["fp32"])


def test_operators_add_up_to_what_they_cost_in_runs_that_are_compiled(
    tmp_path, monkeypatch
) -> None:
    """Times are of one device: of several, a row exchanges tensors between them."""
    monkeypatch.setattr(shard_timing, "compiles", lambda *_: True)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    assert main(profile(tmp_path)) == 0
    (file,) = tmp_path.rglob("shards-*.json")
    joined = json.loads(file.read_text())["joined"]["2"]
    assert 0 < joined["kept_bytes"] < 1 << 20
    (tmp_path / "csv" / "p2p_intra_node.csv").write_text("1\n5.0\n")
    subject = subject_of("gpt", "tiny", 4)
    database = read_database(tmp_path / "csv", subject.name, subject.operators())
    inner = database.rows[2, 1, 0][:, 1:-1].sum(axis=1)
    assert inner[FORWARD] == pytest.approx(joined["forward_s"] * 1e9, rel=1e-3)
    assert inner[BACKWARD] == pytest.approx(joined["backward_s"] * 1e9, rel=1e-3)
    assert database.updated > 0


def test_a_profile_that_was_killed_goes_on_where_it_was(tmp_path, monkeypatch) -> None:
    """Each shard that differs is measured once, and one without room is a state."""
    asked, measure = [], shard_timing.Timer.cost

    def cost(self, call, variant):
        asked.append((call, variant))
        if len(asked) == 5:
            raise KeyboardInterrupt
        return measure(self, call, variant)

    monkeypatch.setattr(shard_timing.Timer, "cost", cost)
    monkeypatch.setattr("workbench.profile.shard_store.drifted", lambda *_: False)
    words = profile(tmp_path, "--device-memory", "300KiB")
    assert main(words) == 130
    assert not (tmp_path / "csv").exists()
    assert main(words) == 0
    assert main(words) == 0
    assert len(asked) == 1 + len({*asked}) < 2 * 2 * 13
    (tmp_path / "csv" / "p2p_intra_node.csv").write_text("1\n5.0\n")
    subject = subject_of("gpt", "tiny", 4)
    database = read_database(tmp_path / "csv", subject.name, subject.operators())
    times = database.rows[2, 1, 0][FORWARD]
    assert times.min() == -1
    assert times.max() > 0
