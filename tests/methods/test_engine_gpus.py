"""A user's own loop in processes of torchrun, a GPU each, trains as torch's loop on one processor;
where one fails, all end."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.methods.loops import RANKED, in_groups, torchs
from workbench.page import free_port

pytestmark = pytest.mark.gpu
LIMIT_S = 240


def ranks(tmp_path, method: str, how: str) -> list[dict]:
    """Losses, weights and the error of each of two processes; empty for one that was killed.

    Where one is to fail no torchrun watches them: it would end the other before that can tell."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU is no several")
    module = ["-m", "tests.methods.engine_ranks", method, how, str(tmp_path)]
    if how == "trains":
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        subprocess.run([sys.executable, *torchrun, *module], timeout=LIMIT_S)
    else:
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(0)), "WORLD_SIZE": "2"}
        environments = [os.environ | meet | {"RANK": r, "LOCAL_RANK": r} for r in "01"]
        processes = [subprocess.Popen([sys.executable, *module], env=e) for e in environments]
        try:
            for process in processes:
                process.wait(LIMIT_S)
        finally:
            for process in processes:
                process.kill()
    paths = [tmp_path / f"{rank}.json" for rank in range(2)]
    return [json.loads(path.read_text()) if path.exists() else {} for path in paths]


@pytest.mark.parametrize("method", [*RANKED, "varuna", "fsdp"])
def test_two_gpus_train_it_as_torch_does(tmp_path, method) -> None:
    wanted, weights = torchs(in_groups, frozen=method != "fsdp", padded=True)
    for one in ranks(tmp_path, method, "trains"):
        assert one.get("losses") == pytest.approx(wanted, rel=1e-5), one
        for name, value in weights.items():
            torch.testing.assert_close(
                torch.tensor(one["weights"][name]), value, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize(
    ("method", "how", "words"),
    [
        ("harmony-dp", "raises", "RankFailed: rank 1: no such luck"),
        ("harmony-dp", "killed", "RankFailed: rank 1: its process has ended, in step 2"),
        ("harmony-pp", "killed", "RankFailed: rank 1: its process has ended, in step 2"),
        ("fsdp", "killed", "RankFailed: rank 1: its process has ended, in step 2"),
        ("fsdp", "stopped", "RankFailed: rank 1: it is stopped, and has not moved for 2 s, in s"),
        ("varuna", "stopped", "RankFailed: rank 1: it is stopped, and has not moved for 2 s, in s"),
    ],
)
def test_one_that_fails_ends_the_other(tmp_path, method, how, words) -> None:
    """A GPU waits for it in a kernel."""
    first, last = ranks(tmp_path, method, how)
    assert first["said"].startswith(words), first
    assert how != "raises" or "no such luck" in last["said"]
