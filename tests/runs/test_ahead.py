"""Processes that are started before their run is known: they run it, or nothing is left of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.runs.helpers import (
    HANG_S,
    fake_spec,
    left_behind,
    processes_of,
    role,
    start_driver,
    wait_for,
)
from workbench.runs.ahead import Ahead
from workbench.runs.runner import run
from workbench.runs.starts import COMMAND
from workbench.runs.store import Store

SIZES = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}  # fmt: skip

NOTHING = ["nothing", "cpu", "", ""]
"""Words of a command without a configuration."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (file := tmp_path / "config.json").write_text(json.dumps(SIZES))
    return file


def test_they_run_what_they_are_handed(store: Store) -> None:
    with Ahead(store.root, NOTHING) as ahead:
        (guard,) = [p.pid for p in wait_for(lambda: role("guard", store.root))]
        record = run(fake_spec("children leave"), store, ahead=ahead)
        assert (record.status, record.losses) == ("ok", [1, 1 / 2, 1 / 3])
        assert [*record.start][0] == COMMAND, "what the user waited for before there was a run"
        told = (store.folder(record.key) / "log.txt").read_text()
        assert "iteration        3/       3" in told
        events = (store.folder(record.key) / "events.jsonl").read_text().splitlines()
        assert [json.loads(line)["event"] for line in events][0] == "started"
        assert left_behind(store.root, patience_s=0) == [], f"also of what {guard} watched"
        again = run(fake_spec("steps"), store, ahead=ahead)
    assert again.status == "ok", "others are started for a second run"
    assert COMMAND not in again.start


def test_a_run_whose_waiting_processes_were_killed_starts_others(store: Store) -> None:
    with Ahead(store.root, NOTHING) as ahead:
        wait_for(lambda: role("guard", store.root))[0].kill()
        wait_for(lambda: not processes_of(store.root))
        assert run(fake_spec("steps"), store, ahead=ahead).status == "ok"


@pytest.mark.parametrize("words", [["--seq", "64"], ["--log", "nowhere"]])
def test_a_refused_command_leaves_nothing(store: Store, config: Path, words: list[str]) -> None:
    given = ["--text", "steps", "--hf-config", config, "--seq", "16", *words]
    command = start_driver("run", "-m", "fake", *given, "--results", store.root)
    assert command.wait(HANG_S) == 2
    assert left_behind(store.root, patience_s=0) == []
    assert len(command.stderr.read().decode().strip().splitlines()) == 1
    assert not store.root.exists()


def test_a_command_that_is_killed_leaves_nothing(store: Store, config: Path) -> None:
    words = ("run", "-m", "fake", "--hf-config", config, "--seq", "16", "--results", store.root)
    command = start_driver(*words)
    wait_for(lambda: role("worker", store.root))
    os.kill(command.pid, signal.SIGKILL)
    command.wait(HANG_S)
    assert left_behind(store.root) == []
