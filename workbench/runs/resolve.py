"""What a spec means on this machine: what it leaves open is decided, and what cannot be is said."""

from __future__ import annotations

from dataclasses import replace

from workbench.core.paths import user_path
from workbench.model.custom import source_digest
from workbench.runs import machine, methods
from workbench.runs.spec import RunSpec


def resolve(spec: RunSpec) -> RunSpec:
    """The spec as it would run here: its device and text decided, a window only for who has one,
    and of a user's own module what its file says now.

    Raises ValueError for an unknown method, or a device or module that is not here.
    """
    changes = {"device": machine.resolve_device(spec.device)}
    method = methods.find(spec.method)
    if not (method.windowed or method.refuses):
        changes |= {"window": "auto", "resident": "auto"}
    if spec.ranks > 1 and not method.parallel:
        raise ValueError(
            f"ranks is {spec.ranks}; {method.name} runs on one device, so it must be 1"
        )
    methods.check_model(method, spec.model)
    if spec.start_from and not method.portable:
        able = ", ".join(m.name for m in methods.known().values() if m.portable)
        raise ValueError(
            f"start_from is {spec.start_from!r}, and {method.name} has checkpoints of its engine's "
            f"own form; it is for {able}"
        )
    if changes["device"] == "cuda" and spec.ranks > len(machine.gpus()):
        raise ValueError(
            f"ranks is {spec.ranks}; this machine has {len(machine.gpus())} GPUs, a rank needs one"
        )
    if spec.model.custom and not spec.model.config_digest:
        changes["model"] = replace(spec.model, config_digest=source_digest(spec.model.family))
    text = user_path(spec.text)
    if spec.text != "stdlib" and text.exists():  # the key must not depend on the folder we are in
        changes["text"] = str(text.resolve())
    if spec.start_from and (run := user_path(spec.start_from)).is_dir():
        changes["start_from"] = str(run.resolve())
    return spec.with_(**changes)


def key_of(spec: RunSpec) -> str:
    """Key of a spec on this machine. Raises ValueError for an unknown method or device."""
    spec = resolve(spec)
    return spec.key(methods.code_version(spec.method), machine.device_class(spec.device))
