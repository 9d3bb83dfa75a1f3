"""A job whose hosts come and go ends with the losses of one that nobody disturbed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.elastic.hosts import ROOT as HAS_ROOT
from tests.elastic.hosts import VARUNA, Hosts, Launched, some_hosts
from tests.runs.helpers import ROOT, wait_for
from tests.varuna import net
from tests.varuna.cases import CLIP
from workbench.core.sealed import read_sealed
from workbench.methods.varuna.logs import read_losses
from workbench.profile.slices import FILE

pytestmark = pytest.mark.slow
BATCH, STEPS, EVERY = 9, 17, 3
WORKER = Path(__file__).with_name("elastic_worker.py")


class Training(Launched):
    """A job that trains the net."""

    def __init__(self, to: Path, there: Hosts) -> None:
        super().__init__(to)
        self.there = there

    def start(self, count: int, *flags: object, steps: int = STEPS) -> None:
        self.hosts(*self.there.names[:count])
        self.until(0)
        self.launch(
            "--batch_size", BATCH, *self.there.flags, *flags, "--code_dir", ROOT, WORKER,
            "--batch", BATCH, "--steps", steps, "--every", EVERY, "--to", self.to,
            inside=self.there.inside,
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
        self.meets(rank, "BACKWARD")
        self.until(after)

    def meets(self, rank: int, fate: str) -> None:
        """Have a worker die in its next action of a kind, or while it saves, or be stopped."""
        part = self.to / "fate.part"
        part.write_text(fate)
        part.replace(self.to / f"fate-{rank}")

    def saved(self) -> list[Path]:
        return sorted((self.to / "checkpoints").glob("step-*"))


@pytest.fixture
def job(tmp_path: Path):
    with some_hosts(3) as there:
        job = Training(tmp_path, there)
        yield job
        job.end()


@pytest.fixture(scope="module")
def wanted() -> list[float]:
    """Losses of torch's own loop."""
    torch.set_num_threads(1)
    return net.plain(BATCH, STEPS, CLIP, net.adamw)[0]


def test_without_a_shape_a_round_profiles_and_its_cut_is_trained(job: Training, wanted) -> None:
    profiles = job.to / "profiles"
    asked = 2, "--gpus_per_node", 1, "--profiles", profiles
    job.start(*asked, "--profiling", "--folder", job.to / "before")
    assert job.manager.wait(240) == 0
    data = read_sealed(profiles / FILE, "it")
    assert [(one["first"], one["second"]) for one in data["tied"]] == [(0, 4)]
    for slice_, seconds in zip(data["slices"], (0.1, *[0.05] * 4), strict=True):
        for one in slice_["costs"]:  # best: a stage of the first slice, and one of four
            one |= {"forward_s": seconds, "backward_s": seconds}
    data["sums"] = [{"ranks": 2, "nbytes": 1, "seconds": 9.0}]
    data |= {"between": {"latency_s": 1e-4, "bytes_per_s": 1e9}, "jitter": {}}
    (profiles / FILE).write_text(made_up := json.dumps(data))
    job.start(*asked)
    job.until(STEPS)
    assert job.manager.wait(120) == 0
    assert (profiles / FILE).read_text() == made_up, "one that fits stays"
    assert {(line["map"], line["cut"]) for line in job.lines()} == {("0;1;", "1 4")}
    assert [line["loss"] for line in job.lines()] == pytest.approx(wanted, rel=1e-5)


def test_losses_are_those_of_an_undisturbed_run(job: Training, wanted) -> None:
    job.start(3, "--gpus_per_node", 2, "--nstages", 2, "--chunk_size", 2)
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
    _, *lines = (line.split() for line in log.read_text().splitlines())
    first = lines[: [words[0] for words in lines].index("BATCH")]
    assert {words[0] for words in first} > {"fwd", "rec", "bwd", "sendacts"}


FATES = "FORWARD", "BACKWARD", "REDUCE", "SAVING", "STOP FORWARD", "two", "torn", "flipped", "list"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_random_rounds_lose_nothing(job: Training, seed: int) -> None:
    """Twenty, in which workers die at any place or are stopped, one or two of them, checkpoints are
    damaged, and hosts come and go."""
    choose, hosts, done, damaged = random.Random(seed), 3, 5, []
    steps = done + 3 * 20 + 2
    job.start(hosts, "--gpus_per_node", 2, "--nstages", 2, "--chunk_size", 2, steps=steps)
    job.until(done)
    for fate in choose.sample(FATES * 3, 20):
        rank, other = choose.sample(range(2 * hosts), 2)
        if fate == "list":
            hosts = choose.choice([count for count in (1, 2, 3) if count != hosts])
            job.hosts(*job.there.names[:hosts])
        elif fate == "two":
            job.meets(other, "FORWARD")
        elif fate in ("torn", "flipped") and job.saved()[-2] not in damaged:  # two are kept
            damaged = [job.saved()[-1]]
            shard = choose.choice(sorted(damaged[0].glob("unit-*.safetensors")))
            data = bytearray(shard.read_bytes())
            data[-5] ^= 1
            shard.write_bytes(data if fate == "flipped" else data[:-9])
        if fate != "list":
            job.meets(rank, fate if fate in FATES[:5] else "BACKWARD")
        done += 3
        job.until(done)
        for mark in job.to.glob("fate-*"):  # of an action that this shape lacks
            mark.unlink(missing_ok=True)
    job.until(steps)
    assert job.manager.wait(240) == 0
    last = {line["step"]: line["loss"] for line in job.lines()}
    assert [*last] == [*range(1, steps + 1)]
    wanted, *_ = net.plain(BATCH, steps, CLIP, net.adamw)
    assert [*last.values()] == pytest.approx(wanted, rel=1e-5)
    redone = [one - other for one, other in pairwise(job.steps()) if other <= one]
    assert max(redone) < 3 * EVERY, (
        "the newest checkpoint may be damaged, and the next not whole yet"
    )
    assert len({line["map"] for line in job.lines()}) > 1


@pytest.mark.thorough
def test_hosts_go_and_come_and_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Eight workers, six, three, and eight again; then the disk is full until the job is resumed
    with room."""
    if not HAS_ROOT:
        pytest.skip("only root mounts a small disk")
    disk, steps, step = tmp_path / "checkpoints", 40, 2
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", disk], check=True)
    try:
        with some_hosts(4) as there:
            job, flags = Training(tmp_path, there), ("--gpus_per_node", 2, "--nstages", 1)
            job.start(4, *flags, "--chunk_size", 2, steps=steps)
            job.until(step)
            three = there.names[0], f"{there.names[1]}:1"
            for workers, names in ((6, there.names[:3]), (3, three), (8, there.names)):
                job.hosts(*names)
                while job.lines()[-1]["map"].count(",") + 1 != workers:
                    step += 1
                    job.until(step)
                    time.sleep(1.0)  # agents start meanwhile
            (tmp_path / "until").write_text(str(steps))
            filler = disk / "filler"
            while job.manager.poll() is None:  # whatever is given back is taken
                with suppress(OSError), filler.open("ab") as file:
                    file.write(bytes(shutil.disk_usage(disk).free))
                time.sleep(0.02)
            assert job.manager.wait(240) == 3
            assert "No space left" in (tmp_path / "manager.log").read_text()
            filler.unlink()
            job.start(4, *flags, "--chunk_size", 2, "--resume", steps=steps)
            job.until(steps)
            assert job.manager.wait(120) == 0
            job.end()
    finally:
        subprocess.run(["umount", disk], check=True)
    losses = {line["step"]: line["loss"] for line in job.lines()}
    wanted, *_ = net.plain(BATCH, steps, CLIP, net.adamw)
    assert [*losses.values()] == pytest.approx(wanted, rel=1e-5)
