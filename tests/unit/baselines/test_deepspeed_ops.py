"""DeepSpeed's operators: found where they were built, no wait for a dead builder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baselines import deepspeed_ops, processor

HOLD_A_LOCK = """
import sys, time
from torch.utils.file_baton import FileBaton
assert FileBaton(sys.argv[1]).try_acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_only_locks_without_a_living_owner_are_removed(tmp_path: Path) -> None:
    abandoned, held = tmp_path / "cpu_adam" / "lock", tmp_path / "async_io" / "lock"
    abandoned.parent.mkdir()
    held.parent.mkdir()
    abandoned.touch()
    owner = subprocess.Popen([sys.executable, "-c", HOLD_A_LOCK, str(held)], stdout=subprocess.PIPE)
    try:
        assert owner.stdout.readline() == b"held\n"
        assert deepspeed_ops.clear_stale_locks(tmp_path) == [abandoned]
        assert held.exists()
    finally:
        owner.kill()
        owner.communicate()
    assert held.exists(), "a killed builder leaves its lock behind"
    assert deepspeed_ops.clear_stale_locks(tmp_path) == [held]
    assert not held.exists()


def test_an_unknown_operator_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"'cpu_adagrad'.*cpu_adam"):
        deepspeed_ops.why_not("cpu_adagrad")


@pytest.mark.deepspeed
def test_without_a_compiler_building_says_why_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    said: list[str] = []
    assert deepspeed_ops.build(["cpu_adam"], said.append, "cpu") == ["cpu_adam"]
    assert len(said) == 1
    assert "no C++ compiler" in said[0]


@pytest.mark.deepspeed
def test_without_libaio_only_the_disk_tier_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "finds-no-libaio"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert deepspeed_ops.why_not("cpu_adam") is None
    assert "libaio-dev" in deepspeed_ops.why_not("async_io")
    assert deepspeed_ops.required(device="cpu") == ["deepspeed_shm_comm", "cpu_adam"]
    assert deepspeed_ops.required(device="cuda") == ["cpu_adam"]


@pytest.mark.deepspeed
def test_an_operator_counts_once_it_was_loaded_not_once_its_library_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    folder = deepspeed_ops.extensions_dir("cpu") / "cpu_adam"
    folder.mkdir(parents=True)
    (folder / "cpu_adam.so").touch()
    assert "cpu_adam" in deepspeed_ops.missing(device="cpu")
    (folder / deepspeed_ops.READY).touch()
    assert "cpu_adam" not in deepspeed_ops.missing(device="cpu")


@pytest.mark.deepspeed
def test_the_folder_is_named_after_what_the_machine_code_depends_on() -> None:
    folder = deepspeed_ops.extensions_dir("cpu")
    assert folder.is_relative_to(sys.prefix)
    assert deepspeed_ops.extensions_dir("cuda") != folder
    for part in ("torch2.", "deepspeed0.", f"py3{sys.version_info.minor}"):
        assert part in folder.name


def test_the_processor_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = pytest.importorskip("cpuinfo")
    asked = []
    for _ in range(2):  # processes
        monkeypatch.setattr(cpuinfo, "get_cpu_info", lambda: asked.append(1) or {"arch": "x"})
        for _ in range(2):
            processor.keep_the_processors_name(tmp_path)
            assert cpuinfo.get_cpu_info() == {"arch": "x"}
    assert asked == [1]


ADAM_STEP = """
import torch
from baselines import deepspeed_ops
folder = deepspeed_ops.activate("cpu")
from deepspeed.ops.adam import DeepSpeedCPUAdam
torch.manual_seed(0)
start, gradient = torch.randn(10_001), torch.randn(10_001)
ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
ours.grad, theirs.grad = gradient.clone(), gradient.clone()
settings = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
torch.optim.AdamW([ours], **settings).step()
DeepSpeedCPUAdam([theirs], adamw_mode=True, **settings).step()
print(float((ours - theirs).abs().max()), float((ours - start).abs().max()))
"""


@pytest.mark.deepspeed
def test_the_built_optimizer_loads_without_compiling_and_updates_as_torch_does(root: Path) -> None:
    library = deepspeed_ops.extensions_dir("cpu") / "cpu_adam" / "cpu_adam.so"
    built = library.stat().st_mtime_ns
    # A bare PATH: ninja has to come from the environment itself.
    answer = subprocess.run(
        [sys.executable, "-c", ADAM_STEP],
        cwd=root,
        env={**os.environ, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    error, moved = map(float, answer.stdout.splitlines()[-1].split())
    assert error < 1e-5 < 1e-3 < moved
    assert library.stat().st_mtime_ns == built
