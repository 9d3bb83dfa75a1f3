"""A job's folder and its manager: files that are damaged, late, somebody else's, or not there."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.runs.helpers import wait_for
from workbench.cli import varuna as cli_varuna
from workbench.elastic import manager
from workbench.elastic.folder import Door, Folder
from workbench.elastic.manager import Manager
from workbench.elastic.placement import fixed
from workbench.elastic.rounds import Terms
from workbench.elastic.worker import AGENT, NOTE, Worker
from workbench.runtime.checkpoint.manifest import Manifest, newest_of_job, publish, set_aside

DOOR = {"pid": os.getpid(), "address": "127.0.0.1", "port": 9, "token": "x"}


def saved(folder: Path, step: int, job: str) -> Path:
    """A checkpoint without tensors."""
    made, several = folder / f".{step}", {"losses": [1.0] * step, "grad_norms": [None] * step}
    made.mkdir(parents=True)
    (made / "unit").write_bytes(b"12")
    told = {"next_step": step, "updates_done": step, "step_seconds": [], "skipped": []}
    return publish(made, Manifest(**told, **several, continues={"job": job}))


def test_the_newest_checkpoint_is_the_one_of_the_folder(tmp_path: Path) -> None:
    run, own = tmp_path / "run", tmp_path / "own"
    newest = partial(Folder(run).newest, newest_of_job, "a", began=0)
    saved(run / "checkpoints", 2, "a")
    assert (newest(None), newest(5)) == (2, 5), "nobody has noted a folder"
    (run / NOTE).write_text(json.dumps({"folder": str(own)}))
    assert newest(5) == 5, "the folder cannot be seen from here"
    own_ones = [saved(own, step, job) for step, job in ((3, "b"), (7, "a"), (9, "a"))]
    assert newest(None) == newest(6) == 9
    (own_ones[2] / "unit").write_bytes(b"1")
    assert newest(9) == 7
    set_aside(own_ones[1])
    assert (newest(9), newest(9, began=3)) == (2, 3)
    set_aside(run / "checkpoints" / "step-00000002")
    with pytest.raises(ValueError, match=f"{own} has no sound checkpoint .* one of step 9; put"):
        newest(9)
    (run / NOTE).write_text("[]")
    with pytest.raises(ValueError, match=f"{run / NOTE} is"):
        newest(9)


def test_a_token_is_for_its_owner_alone_whatever_was_there_before(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "manager.json"
    other.write_text("kept")
    path.symlink_to(other)
    for _ in range(2):
        Folder(tmp_path).open_door(Door(**DOOR))
        assert (path.is_symlink(), path.stat().st_mode & 0o777) == (False, 0o600)
        path.chmod(0o666)
    assert other.read_text() == "kept"


@pytest.mark.parametrize(
    ("door", "why"),
    [
        ({}, "no manager serves {}: its manager.json names port 9 of 127.0.0.1, .*refused"),
        (
            {"address": "a" * 300},
            "no manager serves {}: its manager.json names port 9 of a*, which",
        ),
        ({"pid": 2**63 - 1}, r"{}/manager.json: pid is \d+; it must be from 1 to 4194304"),
        ({"pid": -1}, "{}/manager.json: pid is -1; it must be from 1 to"),
        ({"port": 99999}, "{}/manager.json: port is 99999; it must be from 1 to 65535"),
    ],
)
def test_a_damaged_door_is_a_sentence_that_names_the_folder(
    tmp_path: Path, door: dict, why: str
) -> None:
    (tmp_path / "manager.json").write_text(json.dumps(DOOR | door))
    with pytest.raises(ValueError, match=why.format(tmp_path)):
        cli_varuna.main(["stop", "--folder", str(tmp_path)])


@pytest.mark.parametrize(
    "text", ["x", "5", "{}", '{"pid": %d, "line": 99999999999}', '{"pid": %d}']
)
def test_a_workers_environment_that_is_garbage_is_a_sentence(monkeypatch, text: str) -> None:
    monkeypatch.setenv(AGENT, text.replace("%d", str(os.getpid())))
    with pytest.raises(ValueError, match=f"{AGENT} is '.*`workbench varuna` alone sets"):
        Worker.join()


def managing(tmp_path: Path) -> Manager:
    order = Mock(folder=str(tmp_path), batch=8)
    terms = Terms(hosts={"127.0.0.2": 2}, per_host=2, batch=8, choose=fixed(2, 1, 8), morph="gain")
    job = Mock(terms=terms, order=order, machine_list=tmp_path / "list")
    return Manager(job, None, Mock(getsockname=lambda: ("127.0.0.1", 1)))


def test_a_disk_that_does_not_answer_holds_nobody_up(tmp_path: Path, monkeypatch) -> None:
    """The list stays as it was until it answers, and is followed then."""
    answers = threading.Event()

    def read(path: Path) -> str:
        answers.wait()
        return path.read_text()

    async def drive() -> None:
        monkeypatch.setattr(manager, "_text_of", read)
        monkeypatch.setattr(manager, "SILENT_S", 0.0)
        ours = managing(tmp_path)
        ours._folder._turn.do(answers.wait)
        (tmp_path / "list").write_text("127.0.0.3")
        for _ in range(3):
            ours._read_list()
            ours._write_state()
            await asyncio.sleep(0.01)
        assert [*ours._members.hosts] == ["127.0.0.2"]
        (why,) = [text for _, text in ours._events]
        assert why == "the machine list stays as it was: it does not answer"
        assert not (tmp_path / "state.json").exists()
        answers.set()
        while "127.0.0.3" not in ours._members.hosts:
            ours._read_list()
            await asyncio.sleep(0.01)
        wait_for((tmp_path / "state.json").exists)

    asyncio.run(drive())


@pytest.mark.parametrize("token", ["\u00e9", "x"])
def test_a_stranger_is_dropped_whatever_the_token(tmp_path: Path, token: str) -> None:
    async def drive() -> None:
        reader, writer = asyncio.StreamReader(), Mock()
        reader.feed_data(json.dumps({"kind": "stop", "token": token}).encode() + b"\n")
        ours = managing(tmp_path)
        await ours._serve(reader, writer)
        assert (writer.close.called, writer.write.called) == (True, False)
        assert ours._members.outcome is None

    asyncio.run(drive())
