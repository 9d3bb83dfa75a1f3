"""Ranks listen to nobody outside this machine, whatever the environment or its name says."""

from __future__ import annotations

import psutil
import pytest
import torch
import torch.distributed as dist

from workbench.runtime.transport.loopback import LOOPBACK, join


def test_a_process_group_listens_on_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOOPBACK:
        monkeypatch.setenv(name, "no-such-interface")
    before = psutil.Process().net_connections("inet")
    join(torch.device("cpu"))
    try:
        dist.all_reduce(torch.ones(1))
        new = {each.laddr for each in psutil.Process().net_connections("inet")}
        assert {ip for ip, _ in new - {each.laddr for each in before}} == {"127.0.0.1"}
    finally:
        dist.destroy_process_group()
