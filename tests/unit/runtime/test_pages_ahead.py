"""Bytes of the host that are touched before a run wants them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from workbench.core import host
from workbench.core.host import Gpu
from workbench.runtime.memory.pages_ahead import wanted

TOUCHING = """
import sys
from workbench.runtime.memory import pages_ahead
pages_ahead.PART, pages_ahead.GIVEN = 1 << 20, float(sys.argv[1])
pages_ahead.touch(5 << 19)
"""


@pytest.mark.parametrize(
    ("device", "device_memory", "host_memory", "found"),
    [
        ("auto", "15999B", "90GB", 12_000),
        ("auto", "15999B", "11kB", 11_000),
        ("auto", "16kB", "90GB", 0),
        ("auto", "", "90GB", 12_000),
        ("cpu", "8kB", "90GB", 0),
    ],
    ids=["of a thousand parameters", "as allowed", "device has room", "all of it", "no GPU asked"],
)
def test_it_is_as_much_as_states_take_on_the_host(
    device, device_memory, host_memory, found, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file({"weight": torch.zeros(1000)}, tmp_path / "model.safetensors")
    gpu = Gpu(name="small", driver="1", memory_bytes=15_000)
    monkeypatch.setattr(host, "gpus", lambda: (gpu,))
    assert wanted(str(tmp_path / "config.json"), device, device_memory, host_memory) == found


def test_it_tells_what_it_touched_and_holds_it() -> None:
    words = [sys.executable, "-c", TOUCHING]
    with subprocess.Popen([*words, "inf"], stdout=subprocess.PIPE) as process:
        told = [int(process.stdout.readline()) for _ in range(3)]
        assert told == [1 << 20, 2 << 20, 5 << 19]
        assert process.poll() is None
        process.kill()
    assert subprocess.check_output([*words, "0"]).split() == [b"1048576"], "the machine has it"
