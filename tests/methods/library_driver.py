"""Run trainings by other people's libraries in a process of their own, and leave what they did.

DeepSpeed and megatron-core keep process-wide state (process groups, replaced functions of torch),
so tests run them here, one after the other: ``python -m tests.methods.library_driver JOBS.json``.
The jobs of a second file run in a process that has seen nothing of the first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.methods.harness import Silent
from workbench.core.spec import RunSpec
from workbench.runtime.memory.tiers import OutOfMemory


@contextmanager
def prepared(library: str, spec: RunSpec, report: Silent, folder: Path):
    """A training of one library, ready to run."""
    if library == "megatron":
        from baselines.megatron.core import MegatronTraining

        yield MegatronTraining(spec, report, folder)
        return
    from baselines import zero
    from baselines.zero_infinity.run import adapter as infinity
    from baselines.zero_offload.run import adapter as offload
    from baselines.zero_twin_flow.run import adapter as twin

    adapter = {"zero_offload": offload, "zero_infinity": infinity, "zero_twin_flow": twin}[library]
    with zero.training(spec, report, folder, adapter(spec, folder)) as training:
        yield training


def poison(training: Any, at_step: int) -> None:
    """Make a gradient of one step not a number."""
    step = training._step

    def poisoned(number: int) -> float:
        if number != at_step:
            return step(number)
        feed_forward = training.whole.blocks[1].mlp
        hook = feed_forward.register_full_backward_hook(
            lambda module, grads, _: (grads[0] * float("nan"),)
        )
        try:
            return step(number)
        finally:
            hook.remove()

    training._step = poisoned


def run(job: dict[str, Any]) -> None:
    """One job; its result is JSON, with the parameters before and after beside it."""
    spec, folder = RunSpec.from_dict(job["spec"]), Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    report, result = Silent(), {}
    try:
        with prepared(job["library"], spec, report, folder) as training:
            save_file(training.parameters(), folder / "before.safetensors")
            if job["poison_step"] is not None:
                poison(training, job["poison_step"])
            training.run()
            save_file(training.parameters(), folder / "after.safetensors")
            result = asdict(training.outcome())
    except OutOfMemory as error:
        result = {"oom": error.tier, "message": str(error)}
    except torch.OutOfMemoryError as error:
        result = {"oom": "device", "message": str(error)}
    result["left"] = sorted(path.name for path in folder.iterdir())
    result["events"] = [kind for kind, _ in report.events]
    Path(job["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    first, *others = sys.argv[1:]
    for each in json.loads(Path(first).read_text()):
        run(each)
    if others:
        subprocess.run([sys.executable, "-m", "tests.methods.library_driver", *others])
    os._exit(0)  # DeepSpeed may abort while Python takes it down
