"""Workbench: train models that do not fit on the GPUs at hand, and see which method does it best.

Every method is a planner that emits a schedule, which is plain data; one validator, one simulator,
one runtime and one drawer serve all of them. Every run ends as a record, and figures only ever read
records.

    record = workbench.run(method="stronghold", layers=8, hidden=256, steps=5)
    answer = workbench.plan(method="stronghold", layers=100, device_memory="24GiB")
    runs = workbench.sweep(base={"method": "l2l"}, grid={"layers": [8, 16]})
    table = workbench.records()
    workbench.export(record, "weights")
    plan = workbench.search(model="gpt", ranks=4, device_memory="12000MiB")
    engine = workbench.Engine(module, {"lr": 1e-3}, method="stronghold")
    model, optimizer = workbench.wrap(model, optimizer, method="stronghold")

The names are imported when they are used, so that a command line that only asks for help, or a tool
that only draws a schedule, never pays for torch. Start reading at `workbench.schedule`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

HOMES = {**dict.fromkeys(("export", "plan", "records", "run", "sweep"), "api")} | {
    "search": "searching", "Engine": "engine", "wrap": "wrapped",
}  # fmt: skip
"""Public name -> its module."""
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
