"""The executors by their names."""

from __future__ import annotations

from workbench.runs.executor import Executor, LocalExecutor
from workbench.runs.ray_executor import RayExecutor
from workbench.runs.store import Store


def executor_of(name: str, store: Store, what: str) -> Executor:
    """The executor of a name: ``local``, or ``ray``, with the address of a cluster after a colon.

    Raises ValueError for others, and for one whose library is not installed.
    """
    kind, _, address = name.partition(":")
    if kind == "ray":
        return RayExecutor(store, address=address or None)
    if name != "local":
        raise ValueError(f"executor is {name!r}; it must be local, ray, or ray:ADDRESS")
    return LocalExecutor(store, what=what)
