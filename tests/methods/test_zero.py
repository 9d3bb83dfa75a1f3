"""The real DeepSpeed trains as plain training does, and its figures are what it has and moves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from baselines import deepspeed_ops
from baselines.zero_infinity import run as zero_infinity
from baselines.zero_offload import run as zero_offload
from tests.forks.server import command
from tests.methods.harness import Silent, assert_judged
from tests.methods.plain import MODEL, judge, spec_for
from workbench.core.model_spec import ModelSpec
from workbench.core.sealed import write_sealed
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.whole import make_whole
from workbench.runtime.checkpoint.manifest import MANIFEST, Saved, publish

ROOT = Path(__file__).resolve().parents[2]
LOSS_TOLERANCE = 3e-6
"""Relative, in fp32. DeepSpeed's CPU Adam and its sums round differently from torch's; seen were
3e-7, and 5e-7 for parameters."""
GPU_TOLERANCE = 1e-4
BF16_TOLERANCE = 0.01
BASE = spec_for(method="zero-offload", batch=4, microbatches=2, steps=8)
LARGE = ModelSpec(layers=2, hidden=256, heads=4, seq=16, vocab=256, dropout=0.1)
"""DeepSpeed sends to the disk what is at least 1 MiB."""
PARAMETERS = make_model(MODEL).parameters_count()
LARGEST = MODEL.vocab * MODEL.hidden
SPECS = {
    "all": BASE,
    "keep": BASE.with_(activations="keep", steps=3),
    "undivided": BASE.with_(microbatches=1, clip=None, steps=3),
    "bf16": BASE.with_(dtype="bf16"),
    "one step": BASE.with_(steps=1, warmup_steps=0, lr_decay_steps=8),
    "small device": BASE.with_(device_memory=50_000),
    "small host": BASE.with_(host_memory=50_000),
    "tight": BASE.with_(device_memory=600_000, microbatches=4, steps=3),
    "poisoned": BASE.with_(steps=2, warmup_steps=0, lr_decay_steps=8),
    "killed": BASE.with_(steps=4, save_every=2, lr_decay_steps=8),
}
RESUMED = {"resumed": SPECS["killed"].with_(steps=8)}
"""In the folder that "killed" left, by a new process."""
DISK_STEPS = BASE.with_(method="zero-infinity", model=LARGE, optimizer_tier="disk", steps=6)
DISK = {"disk": DISK_STEPS, "small disk": DISK_STEPS.with_(disk_memory=1 << 20)}
LIBRARIES = ("zero_offload", "zero_infinity")


def method_of(library: str) -> str:
    name = library.removesuffix(".run").rpartition(".")[2].replace("_", "-")
    return {"megatron": "megatron-lm"}.get(name, name)


class Runs:
    """Results of jobs by name."""

    def __init__(self, folder: Path, library: str) -> None:
        self.folder, self.library = folder, library
        self._log = folder / "log.txt"

    def start(self, *groups: dict[str, RunSpec], shared: dict[str, str] | None = None) -> None:
        """Run specs one after the other, each group in a process of its own.

        `shared` names runs that continue in the folder of another.
        """
        self.begin(*groups, shared=shared)
        self.wait()

    def begin(self, *groups: dict[str, RunSpec], shared: dict[str, str] | None = None) -> None:
        """Start, and leave the work to itself."""
        self._jobs, paths = [], []
        for number, specs in enumerate(groups):
            jobs = [
                {
                    "library": self.library,
                    "spec": spec.with_(method=method_of(self.library)).to_dict(),
                    "folder": str(self.folder / (shared or {}).get(name, name)),
                    "result": str(self.folder / f"{name}.json"),
                    "poison_step": 1 if name == "poisoned" else None,
                }
                for name, spec in specs.items()
            ]
            self._jobs += jobs
            paths.append(self.folder / f"jobs-{number}.json")
            paths[-1].write_text(json.dumps(jobs))
        words = command("tests.methods.library_driver", *map(str, paths))
        with self._log.open("w") as log:
            self.process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)

    def wait(self) -> None:
        """Until the process has ended, with a result of every run."""
        self.process.wait()
        # The exit code is not asked: DeepSpeed may abort while Python takes it down.
        for job in self._jobs:
            assert Path(job["result"]).exists(), self._log.read_text()[-3000:]

    def result(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / f"{name}.json").read_text())

    def before(self, name: str) -> dict[str, Tensor]:
        return load_file(self.folder / name / "before.safetensors")

    def after(self, name: str) -> dict[str, Tensor]:
        return load_file(self.folder / name / "after.safetensors")


@pytest.fixture(scope="module")
def at_once(tmp_path_factory):
    """Both libraries at work: half of their time goes by on one core."""
    libraries = {name: Runs(tmp_path_factory.mktemp(name), name) for name in LIBRARIES}
    try:
        for name, runs in libraries.items():
            on_disk = name == "zero_infinity" and not deepspeed_ops.missing(["async_io"])
            second = RESUMED | DISK if on_disk else RESUMED
            runs.begin(SPECS, second, shared={"resumed": "killed"})
        yield libraries
    finally:
        for runs in libraries.values():
            runs.process.kill()  # if a test was interrupted


@pytest.fixture(scope="module", params=LIBRARIES)
def runs(request, at_once) -> Runs:
    runs = at_once[request.param]
    runs.wait()
    return runs


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", ["all", "keep", "undivided", "one step"])
def test_deepspeed_trains_as_plain_training_does(runs, name):
    """With dropout, accumulation, clipping, decay groups, a schedule and tied embeddings."""
    result = runs.result(name)
    assert_judged(SPECS[name], result["losses"], runs.after(name), LOSS_TOLERANCE)
    assert result["engine"].startswith("deepspeed 0.")
    assert len(result["step_seconds"]) == SPECS[name].steps
    assert result["parameters"] == PARAMETERS


@pytest.mark.deepspeed
def test_clipping_fires(runs):
    norms = runs.result("all")["grad_norms"]
    assert max(norms) > BASE.clip


@pytest.mark.deepspeed
def test_every_parameter_moves_in_one_step(runs):
    before, after = runs.before("one step"), runs.after("one step")
    for name, value in before.items():
        moved = float((after[name] != value).float().mean())
        # Rows of the embedding for tokens that did not occur move by weight decay alone.
        assert moved > 0.95, (name, moved)


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", ["all", "bf16"])
def test_masters_start_as_everyones_fp32_weights(runs, name):
    expected = make_whole(make_model(MODEL), seed=BASE.seed).state_dict()
    for label, value in runs.before(name).items():
        assert (value == expected[label]).all(), label


@pytest.mark.deepspeed
def test_bf16_follows_fp32(runs):
    losses, expected = runs.result("bf16")["losses"], judge(BASE)[0]
    assert all(abs(a - b) < BF16_TOLERANCE * b for a, b in zip(losses, expected, strict=True))
    assert losses != expected


@pytest.mark.deepspeed
@pytest.mark.parametrize("tier", ["device", "host"])
def test_running_out_of_a_tier(runs, tier):
    result = runs.result(f"small {tier}")
    assert result["oom"] == tier
    assert f"the {tier} tier is out of memory" in result["message"]


@pytest.mark.deepspeed
def test_host_memory_is_the_formula(runs):
    """fp32 masters, their gradients and two moments, and what else each system keeps."""
    host = {name: runs.result(name)["peak_bytes"]["host"] for name in ("undivided", "all", "bf16")}
    if runs.library == "zero_offload":
        # A copy of the weights from which they return, staging for the gradient of the largest
        # parameter, and with micro-batches a copy of the accumulated gradients.
        assert host["undivided"] == 4 * (5 * PARAMETERS + LARGEST)
        assert host["all"] == 4 * (6 * PARAMETERS + LARGEST)
        assert host["bf16"] == 4 * (5 * PARAMETERS + LARGEST // 2)
    else:
        # The weights, and a buffer for gradients of their dtype.
        assert host["undivided"] == host["all"] == 4 * 6 * PARAMETERS
        assert host["bf16"] == 4 * 5 * PARAMETERS


@pytest.mark.deepspeed
def test_device_memory_follows_what_is_on_the_device(runs):
    device = {name: runs.result(name)["peak_bytes"]["device"] for name in ("keep", "all", "tight")}
    kept = device["keep"] - device["all"]
    assert kept > 2 * MODEL.layers * BASE.microbatch * MODEL.seq * MODEL.hidden * 4
    assert device["tight"] <= SPECS["tight"].device_memory
    # Weights, room for the gradient of the largest parameter, two buckets of a block each.
    block = make_model(MODEL).unit_parameters(1)
    resident = 4 * (PARAMETERS + LARGEST + 2 * block)
    if runs.library == "zero_offload":
        assert resident < device["tight"] < 1.5 * resident
    else:
        assert 4 * (LARGEST + block) < device["tight"] < resident


@pytest.mark.deepspeed
def test_bytes_moved_are_the_formula(runs):
    once, twice = (runs.result(name)["moved_bytes"] for name in ("undivided", "all"))
    assert once["read"] == once["write"] == 0
    assert once["store"] == 4 * PARAMETERS
    if runs.library == "zero_offload":
        assert once["load"] == 4 * PARAMETERS
        # A micro-batch's gradients leave, return to be added to, and leave again.
        assert twice["load"] == 2 * 4 * PARAMETERS
        assert twice["store"] == 3 * 4 * PARAMETERS
    else:
        # Weights come once a pass, those of small parameters once a step.
        assert once["load"] <= 2 * 4 * PARAMETERS
        assert 1.9 * once["load"] < twice["load"] < 2 * once["load"]


@pytest.mark.deepspeed
def test_a_step_whose_gradient_is_not_finite_changes_nothing(runs):
    """The second step of two, so the end is that of one."""
    result = runs.result("poisoned")
    assert result["skipped_steps"] == [1]
    assert result["events"].count("skipped") == 1
    after, expected = runs.after("poisoned"), runs.after("one step")
    assert all((after[name] == expected[name]).all() for name in expected)


@pytest.mark.deepspeed
def test_resuming_continues_identically(runs):
    """In a new process, from what the first left in the run's folder."""
    resumed, whole = runs.result("resumed"), runs.result("all")
    assert "resumed" in resumed["events"]
    assert resumed["events"].count("step") == 4
    assert resumed["losses"] == whole["losses"]
    after, expected = runs.after("killed"), runs.after("all")
    assert all((after[name] == expected[name]).all() for name in expected)


class Evil:
    """Makes a folder where it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


@pytest.mark.deepspeed
def test_weights_are_exported_and_nothing_of_a_pickle_runs(runs, tmp_path):
    run = shutil.copytree(runs.folder / "killed", tmp_path / "run")
    spec = RESUMED["resumed"].with_(method=method_of(runs.library))
    write_sealed(run / "spec.json", spec.to_dict())

    def export(out: Path) -> subprocess.CompletedProcess[str]:
        words = command("workbench.cli", "export", str(run), str(out))
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)

    told = export(tmp_path / "out")
    assert told.stdout.startswith(f"exported: {PARAMETERS:,} parameters of step 8 "), told.stderr
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in runs.after("killed").items():
        assert torch.equal(found[name], value), name
    saved = Saved.read(run / "checkpoints" / "step-00000008")
    (file,) = saved.path.glob("*_optim_states.pt")
    torch.save({"optimizer_state_dict": Evil(tmp_path / "evil")}, file)
    (saved.path / MANIFEST).unlink()
    publish(saved.path.rename(saved.path.with_name(".again")), saved.manifest)
    refused = export(tmp_path / "again")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "step-00000008 cannot be read" in refused.stderr
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.deepspeed
def test_optimizer_states_on_the_disk(at_once):
    if deepspeed_ops.missing(["async_io"]):
        pytest.skip(f"async_io is not built: {deepspeed_ops.why_not('async_io')}")
    runs = at_once["zero_infinity"]
    runs.wait()
    result = runs.result("disk")
    assert_judged(DISK["disk"], result["losses"], runs.after("disk"), LOSS_TOLERANCE)
    states = 12 * make_model(LARGE).parameters_count()
    # All but the small parameters' states, and on their way the larger gradients.
    assert 0.95 * states < result["peak_bytes"]["disk"] < 1.34 * states
    assert 0.95 * states < result["moved_bytes"]["read"] < 1.34 * states
    assert 0.95 * states < result["moved_bytes"]["write"] < 1.34 * states
    assert runs.result("small disk")["oom"] == "disk"
    for name in ("disk", "small disk"):
        assert not [left for left in runs.result(name)["left"] if "scratch" in left]


@pytest.mark.gpu
@pytest.mark.deepspeed
@pytest.mark.parametrize("library", LIBRARIES)
def test_on_a_gpu(tmp_path, library):
    """Masks of dropout differ between devices, so there are none here."""
    spec = BASE.with_(model=replace(LARGE, dropout=0.0), device="cuda", device_memory=1 << 30)
    runs = Runs(tmp_path, library)
    runs.start({"gpu": spec, "small": spec.with_(device_memory=1 << 20)})
    result, expected = runs.result("gpu"), judge(spec.with_(device="cpu"))[0]
    for ours, plain in zip(result["losses"], expected, strict=True):
        assert abs(ours - plain) <= GPU_TOLERANCE * plain
    weights = 4 * make_model(LARGE).parameters_count()
    assert weights <= result["moved_bytes"]["load"]
    assert weights <= result["moved_bytes"]["store"]
    assert 0 < result["peak_bytes"]["device"] <= spec.device_memory
    assert result["peak_bytes"]["host"] >= 4 * weights
    assert runs.result("small")["oom"] == "device"


@pytest.mark.gpu
@pytest.mark.deepspeed
@pytest.mark.parametrize("library", [*LIBRARIES, "zero_twin_flow"])
def test_on_a_gpu_all_blocks_share_a_compiled_graph(tmp_path, library):
    """More of them than torch compiles graphs for one function (8)."""
    model = replace(MODEL, layers=10, dropout=0.0)
    spec = BASE.with_(model=model, dtype="bf16", device="cuda", device_memory=1 << 30)
    runs = Runs(tmp_path, library)
    runs.start({name: spec.with_(compile=name) for name in ("on", "off")})
    compiled, eager = runs.result("on"), runs.result("off")
    assert "compiled blocks" in compiled["notes"]
    assert "compiled blocks" not in eager["notes"]
    for one, other in zip(compiled["losses"], eager["losses"], strict=True):
        assert abs(one - other) <= BF16_TOLERANCE * other


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (zero_offload, {"optimizer_tier": "disk"}, "with zero-offload it has no.*zero-infinity"),
        (zero_offload, {"activations": "host"}, "activations cannot be 'host', use 'recompute'"),
        (zero_infinity, {"activations": "host"}, "activations cannot be 'host', use 'recompute'"),
        (zero_infinity, {"optimizer_tier": "disk", "save_every": 5}, "save_every is 5, use 0"),
    ],
)
def test_what_deepspeed_does_not_offer_is_refused(tmp_path, method, changes, message):
    with pytest.raises(ValueError, match=message):
        method.train(BASE.with_(method=method_of(method.__name__), **changes), Silent(), tmp_path)


def test_buckets_scale_with_the_model():
    """At hidden size 2048 they are the published ones; a tiny model must not reserve gigabytes."""
    wide = BASE.with_(model=ModelSpec(layers=100, hidden=2048))
    block = wide.model.block_parameters
    assert zero_offload.settings(wide, block)["zero_optimization"]["reduce_bucket_size"] == 5e7
    zero = zero_infinity.settings(wide, block)["zero_optimization"]
    assert zero["stage3_prefetch_bucket_size"] == 5e7
    assert zero["stage3_max_live_parameters"] == 1e9
    assert zero["stage3_param_persistence_threshold"] < wide.model.hidden**2
    tight = wide.with_(device_memory=4 << 30)
    zero = zero_infinity.settings(tight, block)["zero_optimization"]
    assert zero["stage3_max_live_parameters"] == 2**28
    tiny = zero_offload.settings(BASE, make_model(MODEL).unit_parameters(1))
    assert tiny["zero_optimization"]["reduce_bucket_size"] <= PARAMETERS
