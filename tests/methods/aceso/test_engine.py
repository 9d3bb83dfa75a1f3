"""A plan in a user's own loop trains as torch's loop over the module."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import workbench
from tests.exactness.trained import NEAR
from tests.forks.server import command
from tests.methods.aceso import engine_driver
from tests.methods.aceso.engine_driver import Layers, batches, by_torch, loss_of, own
from tests.methods.aceso.plans import (
    OPERATORS,
    PICTURE_OPERATORS,
    PICTURES,
    T5,
    T5_OPERATORS,
    drawn,
    even,
    plan,
    some,
    turns,
)
from tests.methods.aceso.test_llama import llama
from workbench.methods.aceso.plan import Plan, load_plan

later = partial(pytest.param, marks=pytest.mark.thorough)


def told(made: Plan, what: str, folder: Path, ranks: int = 0) -> list[dict]:
    """What each process has left."""
    (folder / "plan.json").write_text(made.to_json())
    module, ranks = "tests.methods.aceso.engine_driver", ranks or made.gpus
    crew = [
        subprocess.Popen(command(module, what, str(folder), str(rank), str(ranks)))
        for rank in range(ranks)
    ]
    assert [process.wait(240) for process in crew] == [0] * ranks
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("what", "made"),
    [
        # tp and dp that change, cuts inside a layer, a tied table, labels that do not count, and a
        # checkpoint from which another engine goes on.
        ("gpt resumes fp64", plan([(2, 7, turns(2, 1)), (1, OPERATORS, some())])),
        ("llama", llama([(2, 29, drawn(2, 2))])),
        # Layers of any module: a micro-batch that is smaller, dp that changes at a boundary either
        # way, recomputation of some layers, statistics of rows of two processes.
        ("layers resumes fp64", partial(own, [(2, 3, some()), (1, 6, even(again=True))])),
        later("layers fp64", partial(own, [(1, 1, even()), (1, 2, some()), (2, 6, some())])),
        later("layers", partial(own, [(2, 6, some())])),
        later("llama resumes", llama([(1, 11, some()), (2, 29, turns(1, 2))])),
        later("t5", plan([(2, 30, drawn(1, 2)), (1, T5_OPERATORS, some())], model=T5, algos=1)),
        later("resnet resumes fp64", plan([(1, 9, some()), (2, PICTURE_OPERATORS, turns(2, 1))],
                                     model=PICTURES, micro=8, batch=16)),
    ],
)  # fmt: skip
def test_a_users_module_trains_as_in_torchs_loop(what, made, tmp_path):
    """In every process; weights have the module's own names."""
    made = made if isinstance(made, Plan) else made()
    name, near = what.split()[0], NEAR["fp64" if "fp64" in what else "fp32"]
    if name in ("gpt", "t5"):
        made = replace(made, subject=replace(made.subject, batch=engine_driver.ROWS))
    with pytest.MonkeyPatch.context() as patch:
        if "fp64" in what:
            engine_driver.doubled(patch)
        losses, weights = by_torch(name, made.micro)
    torch.set_default_dtype(torch.float32)
    _is_trained(told(made, what, tmp_path), losses, weights, near)


def _is_trained(processes, losses, weights, near):
    for one in processes:
        assert one["said"] == ""
        assert one["losses"] == pytest.approx(losses, rel=near[0])
        assert one["weights"].keys() == weights.keys()
        for key, wanted in weights.items():
            found = torch.tensor(one["weights"][key], dtype=wanted.dtype)
            torch.testing.assert_close(found, wanted, rtol=0, atol=near[1])


def test_a_plan_that_was_searched_for_a_module_trains(measured, tmp_path):
    """Memory is kept by recomputation of some layers, and by processes that share rows."""
    shutil.copytree(measured, tmp_path / "results" / "profiles")
    asked = {
        "module": Layers(), "sample": batches("layers")[0], "loss_fn": loss_of, "device": "cpu",
        "results": tmp_path / "results", "microbatch_sizes": (2, 4),
    }  # fmt: skip
    free = workbench.search(**asked, ranks=2)
    assert sum(stage["recomputed"] for stage in free.stages) == 0
    tight = workbench.search(**asked, ranks=2, device_memory=round(0.8 * free.memory_mb * 2**20))
    assert tight.memory_mb <= 0.8 * free.memory_mb
    assert tight.bound_ms <= tight.iteration_ms
    assert sum(stage["gpus"] for stage in tight.stages) == 2
    made = load_plan(tight.file)
    losses, weights = by_torch("layers", made.micro)
    _is_trained(told(made, "layers", tmp_path), losses, weights, NEAR["fp32"])
    with pytest.raises(ValueError, match="loss_fn is missing; a module is measured with a batch"):
        workbench.search(**asked | {"loss_fn": None})
    with pytest.raises(ValueError, match="max_tp is given, and so is a module"):
        workbench.search(**asked, max_tp=2)


@pytest.mark.parametrize(
    ("what", "made", "words"),
    [
        ("rectified", plan([(2, OPERATORS, even(2))]), "the loss of two rows is|something else"),
        ("other", plan([(1, OPERATORS, even())]), "no parameter 'lm_head.weight'"),
        ("gpt", partial(own, [(1, 6, even())]), "num_layers is 6; Gpt-"),
        ("gpt", plan([(1, OPERATORS, even())], batch=8), "batch has 10 rows; the plan's has 8"),
        ("gpt", plan([(2, OPERATORS, even())]), "for 2 devices, and there are 1 processes"),
    ],
)
def test_a_module_that_the_plan_does_not_train_is_refused(what, made, words, tmp_path):
    """In one sentence, before anything is trained, in every process."""
    made = made if isinstance(made, Plan) else made()
    ranks = 1 if "there are 1" in words else made.gpus
    for one in told(made, what, tmp_path, ranks):
        assert one["losses"] == []
        assert any(word in one["said"] for word in words.split("|")), one["said"]
        assert one["said"].startswith("ValueError")
        assert "\n" not in one["said"]
