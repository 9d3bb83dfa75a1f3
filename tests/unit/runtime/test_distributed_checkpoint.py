"""Checkpoints of several processes: whole or not there, and any other number of them reads one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from baselines.plain_training import PlainTraining
from baselines.states import masters_by_unit
from tests.methods.harness import Silent
from tests.methods.plain import spec_for
from workbench.runtime.checkpoint import distributed_checkpoint as ours
from workbench.runtime.checkpoint.distributed_checkpoint import Fenced, load, load_newest, save
from workbench.runtime.checkpoint.manifest import MANIFEST, Manifest, Saved, newest
from workbench.runtime.transport.loopback import join
from workbench.runtime.updates.optimizer_state import optimizer_tensors, restore_optimizer, weights

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda groups, lr: torch.optim.AdamW(groups, lr=lr, betas=(0.8, 0.9), amsgrad=True),
    "sgd": lambda groups, lr: torch.optim.SGD(groups, lr=lr, momentum=0.9, dampening=0.1),
    "adagrad": lambda groups, lr: torch.optim.Adagrad(groups, lr=lr),
}
SHAPES = {"w": (5, 2), "b": (3,), "scalar": ()}
DATA = {"scale": 65536.0, "scheduler": {"last_epoch": 3}}
FULL = OSError(28, "No space left on device")


class Part:
    """Units of a model and their optimizer. Weights and gradients are drawn by name and step, so
    that parts of any size do alike."""

    def __init__(self, kind: str, units: range, lr: float = 0.1) -> None:
        self.parameters = {
            u: {f"{u}.{n}": drawn(f"{u}.{n}", SHAPES[n]).requires_grad_() for n in SHAPES}
            for u in units
        }
        named = {name: t for each in self.parameters.values() for name, t in each.items()}
        decay = {0.0: [named[n] for n in named if n[-1] == "b"]}
        decay[0.1] = [named[n] for n in named if n[-1] != "b"]
        self.named, groups = named, [{"params": p, "weight_decay": d} for d, p in decay.items()]
        self.optimizer = OPTIMIZERS[kind](groups, lr)

    def train(self, steps: range) -> Part:
        for step in steps:
            for name, tensor in self.named.items():
                tensor.grad = drawn(f"{step}.{name}", tensor.shape)
            self.optimizer.step()
        return self

    def save(self, folder: Path, step: int, **more: Any) -> ours.Saving:
        tensors, numbers = optimizer_tensors([self.optimizer], self.parameters)
        return save(folder, tensors, manifest(step), numbers=numbers, **{"data": DATA, **more})

    def equals(self, other: Part) -> bool:
        return all(torch.equal(each, other.named[name]) for name, each in self.named.items())


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    seed = int.from_bytes(name.encode(), "big") % (1 << 60)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def manifest(step: int) -> Manifest:
    lists = {"losses": [1.0] * step, "step_seconds": [], "grad_norms": [None] * step}
    return Manifest(next_step=step, updates_done=step, skipped=[], continues={}, **lists)


def goes_on(kind: str, units: range, folder: Path, group: Any = None) -> bool:
    """Whether units that were begun otherwise go on from a checkpoint of three steps as they would
    have gone on."""
    part = Part(kind, units, lr=7.0)
    loaded, notes = load_newest(folder, weights(part.parameters), group)
    restore_optimizer(part.optimizer, part.parameters, loaded)
    assert (loaded.data, notes) == (DATA, [])
    assert loaded.statistics["bn.running_mean"].tolist() == [6.0]
    return part.train(range(3, 5)).equals(Part(kind, units).train(range(5)))


def processes(count: int, folder: Path, do: Callable[[int, Any], Any]) -> list[Any]:
    """Answers of `do` in processes that share a group; None of one that is killed."""
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(count)]

    def main(rank: int) -> None:
        join(torch.device("cpu"), file=folder / "meeting", rank=rank, ranks=count)
        ends[rank][1].send(do(rank, dist.group.WORLD))
        os._exit(0)  # a group whose peer is gone may abort in its destructor

    started = [context.Process(target=main, args=(rank,)) for rank in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        process.kill()
    (folder / "meeting").unlink()
    return [end.recv() if end.poll() else None for end, _ in ends]


def test_two_by_two_is_read_by_any_other(tmp_path, monkeypatch) -> None:
    def four(rank: int, group: Any) -> Any:
        """Ranks 0 and 1 hold a unit, 2 and 3 six of them; then each has a stage."""
        real, wrote, stages = ours.save_file, [], [range(2), range(2, 3), range(3, 6), range(6, 7)]
        monkeypatch.setattr(ours, "save_file", lambda t, p: (wrote.append(p.stem), real(t, p)))
        statistics = {"bn.running_mean": torch.tensor([float(rank)])}
        for kind in OPTIMIZERS:
            part = Part(kind, range(1) if rank < 2 else range(1, 7)).train(range(3))
            part.save(tmp_path / kind, 3, statistics=statistics, group=group).wait()
        return wrote, [goes_on(kind, stages[rank], tmp_path / kind, group) for kind in OPTIMIZERS]

    wrote, good = zip(*processes(4, tmp_path, four), strict=True)
    assert good == ([True] * 3,) * 4
    each = ["statistics", *(f"unit-{unit:05d}" for unit in range(7))]
    assert sorted(sum(wrote, [])) == sorted(each * 3), "of each unit and checkpoint, one replica"
    assert len(wrote[2]) == len(wrote[3]) == 9
    three = processes(
        3, tmp_path, lambda _, g: [goes_on(k, range(7), tmp_path / k, g) for k in OPTIMIZERS]
    )
    assert three == [[True] * 3] * 3
    assert all(goes_on(kind, range(7), tmp_path / kind) for kind in OPTIMIZERS)
    other = Part("sgd", range(7))
    loaded, _ = load_newest(tmp_path / "adamw", weights(other.parameters))
    with pytest.raises(ValueError, match="was made with optimizer AdamW of 0.b, this run has SGD"):
        restore_optimizer(other.optimizer, other.parameters, loaded)


def test_who_fails_or_may_not_commit_leaves_what_was_there(tmp_path, monkeypatch) -> None:
    """A fence; a disk with room for two, which is made; a full one; a writer killed."""

    def two(rank: int, group: Any) -> list[str]:
        part, real = Part("adamw", range(rank, 7, 2)), ours.save_file
        room, asked, words = 2, [], []

        def save_file(tensors: Any, path: Path) -> None:
            if rank and room < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            real(tensors, path)
            if rank and len([*tmp_path.glob("step-*")]) >= room:
                raise FULL

        monkeypatch.setattr(ours, "save_file", save_file)
        for step, room in enumerate((2, 2, 9, 2, 0, -1), start=1):
            fence = {"may_commit": asked.append} if step == 3 else {}
            try:
                words.append(part.save(tmp_path, step, group=group, **fence).wait().name)
            except (OSError, Fenced) as error:
                words.append(f"{type(error).__name__}: {error}")
            if room >= 0:
                dist.barrier()  # the other one may not have gone on yet
            words.append(" ".join(sorted(path.name for path in tmp_path.glob("*step*"))))
        return [str(asked), *words]

    told, nothing = processes(2, tmp_path, two)
    one, two_, four = (f"step-0000000{step}" for step in (1, 2, 4))
    fenced = "Fenced: the checkpoint step-00000003 was not committed: others go on with this run"
    lost = "OSError: the checkpoint step-0000000{} was not written: "
    assert told[:7] == ["[3]", one, one, two_, f"{one} {two_}", fenced, f"{one} {two_}"]
    assert told[7:11] == [four, f"{two_} {four}", lost.format(5) + str(FULL), four]
    assert told[11].startswith(lost.format(6))
    assert nothing is None, "it was killed"
    assert [path.name for path in tmp_path.iterdir()] == [four]


@pytest.mark.parametrize("how", ["cut", "flipped", "gone", "unsealed"])
def test_a_damaged_one_is_passed_over_by_all(tmp_path, how) -> None:
    """Rank 1 alone reads the file."""
    part = Part("adamw", range(2))
    for step in (1, 2):
        part.save(tmp_path, step).wait()
        part.train(range(step, step + 1))
    name = MANIFEST if how == "unsealed" else "unit-00001.safetensors"
    file = tmp_path / "step-00000002" / name
    data = file.read_bytes()
    file.write_bytes(data[:-9] if how == "cut" else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    if how == "gone":
        file.unlink()

    def two(rank: int, group: Any) -> Any:
        own = Part("adamw", range(rank, rank + 1), lr=7.0)
        loaded, notes = load_newest(tmp_path, weights(own.parameters), group)
        return loaded.saved.path.name, own.equals(Part("adamw", range(rank, rank + 1))), notes

    first, second = processes(2, tmp_path, two)
    assert first == second == ("step-00000001", True, first[2])
    assert first[2][0].startswith(f"the checkpoint step-00000002 cannot be read: {name} ")
    assert first[2][0].endswith("; the run went on from step-00000001")
    assert (how == "flipped") == (newest(tmp_path)[0].path.name == "step-00000002")


def test_the_newest_of_a_folder_and_a_spare_one_is_taken(tmp_path) -> None:
    part, spare = Part("adamw", range(2)), tmp_path / "spare"
    for folder, step in ((tmp_path, 9), (spare, 10)):
        part.save(folder, step).wait()
    found = [load_newest(tmp_path, weights(part.parameters), spare=each) for each in (None, spare)]
    assert [loaded.saved.manifest.next_step for loaded, _ in found] == [9, 10]


def test_what_changes_after_save_returned_is_not_what_is_written(tmp_path, monkeypatch) -> None:
    part, real, go = Part("adamw", range(2)).train(range(3)), ours.save_file, threading.Event()
    monkeypatch.setattr(ours, "save_file", lambda *words: (go.wait(60), real(*words)))
    tensors, numbers = optimizer_tensors([part.optimizer], part.parameters)
    told, statistics, data = manifest(3), {"bn.running_mean": torch.tensor([6.0])}, dict(DATA)
    saving = save(tmp_path, tensors, told, numbers=numbers, data=data, statistics=statistics)
    part.train(range(3, 9))
    statistics["bn.running_mean"].zero_()
    data["scale"] = told.losses[0] = 0.0
    assert not saving.done()
    go.set()
    assert Saved.read(saving.wait()).manifest.losses == [1.0] * 3
    assert saving.done()
    assert goes_on("adamw", range(2), tmp_path)


def test_plain_training_goes_on_from_ours_and_ours_from_its(tmp_path) -> None:
    """Files are equal byte for byte, so other methods go on, too."""
    spec = spec_for(method="plain", steps=4, lr_decay_steps=20, save_every=2)
    whole = PlainTraining(spec, Silent(), tmp_path / "whole")
    whole.run()
    first = PlainTraining(spec.with_(steps=2), Silent(), tmp_path / "first")
    first.run()
    parameters = {
        unit: {first.model.state_name(unit, local): each for local, each in masters.items()}
        for unit, masters in masters_by_unit(first.whole, first.masters).items()
    }
    theirs = Saved.read(tmp_path / "first" / "checkpoints" / "step-00000002")
    tensors, numbers = optimizer_tensors([first.optimizer.inner], parameters)
    mine = save(tmp_path / "ours" / "checkpoints", tensors, theirs.manifest, numbers=numbers).wait()
    for name in theirs.manifest.files:
        assert (mine / name).read_bytes() == (theirs.path / name).read_bytes(), name
    again = PlainTraining(spec, Silent(), tmp_path / "ours")
    again.run()
    assert again.history.losses == whole.history.losses
    fresh = {u: {n: torch.zeros_like(t) for n, t in each.items()} for u, each in parameters.items()}
    optimizer = torch.optim.AdamW([t for named in fresh.values() for t in named.values()])
    restore_optimizer(optimizer, fresh, load(theirs, weights(fresh)))
    for unit, found in optimizer_tensors([optimizer], fresh)[0].items():
        assert all(torch.equal(found[label], each) for label, each in tensors[unit].items())
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("opened"),))


def test_nobody_opens_a_pickle_or_takes_another_model(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    part = Part("sgd", range(2)).train(range(1))
    path = part.save(tmp_path / "run", 3).wait()
    for folder in (path, path.parent):
        (folder / ".metadata").write_bytes(pickle.dumps(Bomb()))
    load_newest(path.parent, weights(part.parameters))
    assert not Path("opened").exists()
    for label, mine, words in (
        ("w", torch.zeros(5, 1), r"weight/0.w in .* of shape \(5, 2\), the model's is .* \(5, 1\)"),
        ("w", torch.zeros(5, 2).double(), "is torch.float32 of .*, the model's is torch.float64"),
        ("v", torch.zeros(5, 2), "the checkpoint .* has no weight/0.v"),
    ):
        with pytest.raises(ValueError, match=words):
            load_newest(path.parent, {0: {f"weight/0.{label}": mine}})
    half = {0: {"weight/0.w": torch.zeros(5, dtype=torch.bfloat16)}}
    with pytest.raises(ValueError, match=r"is torch.bfloat16; checkpoints hold fp32 masters"):
        save(tmp_path / "run", half, manifest(4))
    with pytest.raises(ValueError, match="milestones is none of JSON's values: "):
        part.save(tmp_path / "run", 4, data={"milestones": {30: 1}})
