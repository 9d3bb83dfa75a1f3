"""Bytes that one rank writes into another's inbox are there when it says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from workbench.runtime.executor.board import Failed
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.transport.inbox import Inbox

WRITER = """
import sys, torch
from pathlib import Path
from workbench.runtime.memory.device_budget import device_meter
from workbench.runtime.transport.inbox import Inbox
kind = sys.argv[2]
device = torch.device("cuda", 1) if kind == "cuda" else torch.device("cpu")
if kind == "cuda":
    torch.cuda.set_device(device)
inbox = Inbox(Path(sys.argv[1]), 1, 0, device_meter(device), device, lambda: None)
there = inbox.place(0, 512, 24).view(torch.float32)
there.copy_(torch.arange(6.0, device=device))
if kind == "cuda":
    torch.cuda.synchronize(device)
"""


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_message_lands_in_its_place_and_nowhere_else(kind: str, tmp_path: Path) -> None:
    if kind == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("torch sees fewer than two CUDA devices")
    device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
    meter = device_meter(device)
    inbox = Inbox(tmp_path, 0, 1024, meter, device, lambda: None)
    subprocess.run([sys.executable, "-c", WRITER, str(tmp_path), kind], check=True, timeout=120)
    whole = inbox.place(0, 0, 1024).view(torch.float32).cpu()
    assert whole[128:134].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert whole.count_nonzero() == 5
    inbox.close()


def test_an_inbox_counts_as_device_memory(tmp_path: Path) -> None:
    device = torch.device("cpu")
    meter = device_meter(device)
    inbox = Inbox(tmp_path, 0, 4096, meter, device, lambda: None)
    assert meter.now == 4096
    inbox.close()
    assert meter.now == 0


def test_nobody_waits_for_the_inbox_of_a_rank_that_is_gone(tmp_path: Path) -> None:
    def check() -> None:
        raise Failed("rank 1 failed")

    device = torch.device("cpu")
    inbox = Inbox(tmp_path, 0, 0, device_meter(device), device, check)
    with pytest.raises(Failed, match="rank 1 failed"):
        inbox.place(1, 0, 4)
