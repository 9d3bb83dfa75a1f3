"""Imported by the process that workers are forked from: what each of them would import again."""

from __future__ import annotations

from importlib import import_module

import torch

LATE = (
    "baselines.fsdp.driven", "tests.varuna.cases", "torch._dynamo",
    "workbench.methods.harmony.planner", "workbench.methods.ranks_driven",
)  # fmt: skip

for name in LATE:
    import_module(name)
torch.set_num_threads(1)
