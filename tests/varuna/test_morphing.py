"""A job whose hosts come and go ends with the losses of one that nobody disturbed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from tests.elastic.hosts import VARUNA, Hosts, Launched, some_hosts
from tests.runs.helpers import ROOT, wait_for
from tests.varuna import net
from tests.varuna.cases import CLIP
from workbench.methods.varuna.logs import read_losses, read_tasks

BATCH, STEPS, EVERY = 9, 17, 3
WORKER = Path(__file__).with_name("elastic_worker.py")


class Job(Launched):
    """A job of three hosts with two workers each."""

    def __init__(self, to: Path, there: Hosts) -> None:
        super().__init__(to)
        self.there = there
        self.hosts(*there.names)
        self.until(0)
        self.launch(
            "--gpus_per_node", 2, "--batch_size", BATCH, "--nstages", 2, "--chunk_size", 2,
            *there.flags, "--code_dir", ROOT, WORKER, "--batch", BATCH, "--steps", STEPS,
            "--every", EVERY, "--to", to, inside=there.inside,
        )  # fmt: skip

    def until(self, step: int) -> None:
        """Let workers do so many steps, and wait until they have."""
        part = self.to / "until.part"
        part.write_text(str(step))
        part.replace(self.to / "until")
        wait_for(lambda: self.remember() or self.steps()[-1:] == [step] or not step)

    def lines(self) -> list[dict]:
        path = self.to / "losses"
        return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []

    def steps(self) -> list[int]:
        return [line["step"] for line in self.lines()]

    def kill(self, rank: int, after: int) -> None:
        """End a worker in its next backward pass; then so many steps are done."""
        (self.to / f"kill-{rank}").touch()
        self.until(after)

    def saved(self) -> list[Path]:
        return sorted((self.to / "checkpoints").glob("step-*"))


@pytest.fixture
def job(tmp_path: Path):
    with some_hosts(3) as there:
        job = Job(tmp_path, there)
        yield job
        job.end()


def test_losses_are_those_of_an_undisturbed_run(job: Job) -> None:
    torch.set_num_threads(1)
    wanted, *_ = net.plain(BATCH, STEPS, CLIP, net.adamw)
    job.until(5)
    job.kill(3, after=7)  # from the checkpoint at 3
    wait_for(lambda: job.saved()[-1].name == "step-00000006")
    torn = job.saved()[-1] / "unit-00002.safetensors"
    torn.write_bytes(torn.read_bytes()[:-9])
    job.kill(0, after=8)  # from the checkpoint at 3 again, since that at 6 is torn
    notice = [*VARUNA, "notice", job.there.names[2], "--folder", str(job.folder)]
    subprocess.run([*job.there.inside, *notice], cwd=ROOT, check=True)
    wait_for(lambda: json.loads((job.folder / "state.json").read_text())["phase"] != "running")
    before = len(job.lines())
    job.until(STEPS)
    morphed = job.lines()[before:]
    assert [line["step"] for line in morphed] == [*range(9, STEPS + 1)], "a notice costs no step"
    assert [morphed[0]["map"], morphed[-1]["map"]] == ["0,2,4;1,3,5;", "0,2;1,3;"]
    assert job.manager.wait(120) == 0
    last = {line["step"]: line["loss"] for line in job.lines()}
    assert [*last] == [*range(1, STEPS + 1)]
    assert [*last.values()] == pytest.approx(wanted, rel=1e-5)
    told = read_losses(job.folder / "varuna_loss.log")
    assert {line.shape for line in told} == {(2, 3), (2, 2)}
    assert len(told) == len(job.lines())
    (log,) = job.folder.glob("varuna_logs-3dp-2mBS-stage0of2_0")
    assert {task.task for task in read_tasks(log)[0]} > {"fwd", "rec", "bwd", "sendacts"}
