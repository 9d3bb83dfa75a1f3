"""Machines that plans are asked for: this one, one that is known by name, and one from a file.

This machine's memory is what runs have: its GPU's, or a counted share of the host's (machine.py).
Its rates are measured (`workbench doctor`), else those of its GPU's datasheet, else none are known.
A file is written by `workbench doctor --save`, or by hand:

    {"like": "rtx4090-24gb", "host_bytes": "128GiB", "disk_read_bytes_per_s": 7e9}

Fields are those of `Hardware`, and ``flops_per_s``: dtype -> operations a second that layers reach.
With ``like`` all that is not said is as on that machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from workbench.core.bytesize import parse_bytes
from workbench.core.files import write_whole
from workbench.core.jsonfile import read_object
from workbench.core.paths import user_path
from workbench.core.schema import read_as
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.profile.machine import Machine, this_machine
from workbench.profile.profile import Hardware, Profile
from workbench.profile.store import ceilings, stored_profile
from workbench.profile.table import Ceilings
from workbench.published import hardware as published
from workbench.published.hardware import Known, known, profile_on

FOLDER = "machines"
"""Of a results folder, with files of machines."""
PRODUCTS = {"fp32": "matrix product, float32", "bf16": "matrix product, bfloat16"}
LAYERS = 0.6
"""Share of the rate of matrix products that layers reach: 0.4 to 0.6 was seen on two cores, 0.5 to
0.8 on an H100."""
SMALLEST_RATES = {"action_overhead_s", "link_latency_s", "host_copy_bytes_per_s"}
SMALLEST_RATES |= {"disk_read_bytes_per_s", "disk_write_bytes_per_s"}
"""Numbers of a file that may be 0: of a machine without them."""
HOW = '`workbench plan --measure` measures it, or "Examine this machine" on the page'


def names(results: Path) -> list[str]:
    """Machines that have a name: known ones, and those saved among the results."""
    saved = sorted(path.stem for path in (results / FOLDER).glob("*.json"))
    return [*published.names(), *(name for name in saved if name not in published.names())]


def find(name: str, results: Path) -> Known:
    """The machine of that name, or of the file ``NAME.json``. Raises ValueError."""
    if name.endswith(".json"):
        return read(user_path(name))
    if name not in published.names() and (saved := results / FOLDER / f"{name}.json").exists():
        return read(saved)
    return known(name)


def profile_of(
    spec: RunSpec, results: Path, machine: str | None, echo: Callable[[str], object]
) -> Profile:
    """The profile of the spec's model on a machine; None is this one, as it was measured or, where
    it was not, as far as it is known. `echo` hears why a measurement that is stored is not used.

    Raises ValueError for a machine or a rate that is not known.
    """
    if machine is None and (found := stored_profile(spec, results, echo)) is not None:
        return found
    on = find(machine, results) if machine is not None else here(spec.device, results)
    found = profile_on(on, spec.model, spec.microbatch, spec.dtype)
    return found.with_link(spec.link_bytes_per_s)


def here(device: str, results: Path) -> Known:
    """This machine without its layers. Raises ValueError for a device that is not here."""
    own = this_machine(device)
    if (found := ceilings(results, own.device, measure=False)) is not None:
        return Known(
            hardware=replace(found.hardware, source="estimated"),
            flops_per_s={dtype: (rate, rate) for dtype, rate in _layers(found).items()},
            note="such layers were not measured here, so times are estimated: "
            f"{LAYERS:.0%} of the rate of matrix products; `workbench plan --measure` measures "
            "them, as a run does",
        )
    device_bytes, host_bytes = own.tiers()
    like = next((name for name in published.names() if own.gpu and _is(own, name)), None)
    base = known(like or published.DEFAULT)
    there = replace(
        base.hardware, name=own.name, source="estimated" if like else "unmeasured",
        device=own.device, cores=own.cores, device_bytes=device_bytes, host_bytes=host_bytes,
    )  # fmt: skip
    if like:
        note = f"times are estimated, with rates of {like}: {base.note}; {HOW}"
        return Known(hardware=there, flops_per_s=base.flops_per_s, note=note)
    return Known(
        hardware=replace(there, **published.DISK),
        flops_per_s=dict.fromkeys(VALUE_BYTES, base.flops_per_s["fp32"]),
        note=f"this machine has not been measured, so no times are told: {HOW}",
    )


def _is(own: Machine, name: str) -> bool:
    """Whether this machine's GPU is that of a known machine, by its name and memory."""
    alike = name.partition("-")[0] in own.gpu.lower().replace(" ", "")
    return alike and abs(own.tiers()[0] / known(name).hardware.device_bytes - 1) < 0.15


def _layers(found: Ceilings) -> dict[str, float]:
    """dtype -> operations a second of layers, by the measured matrix products."""
    rates = {figure.name: figure.value for figure in found.figures}
    default = found.hardware.matmul_flops_per_s
    return {dtype: LAYERS * rates.get(name, default) for dtype, name in PRODUCTS.items()}


# -- files -----------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Raise ValueError for a name that a known machine has, or that no file can have."""
    if not re.fullmatch(r"[\w][\w.-]*", name) or name in published.names():
        raise ValueError(
            f"{name!r} cannot be the name of a machine of one's own: it has letters, digits, - "
            f"and _, and is none of {', '.join(published.names())}"
        )


def save(name: str, found: Ceilings, folder: Path) -> Path:
    """Write a measured machine as ``FOLDER/NAME.json``. Raises ValueError as `check_name` does, and
    where the folder cannot be written."""
    check_name(name)
    data = asdict(found.hardware) | {"name": name, "flops_per_s": _layers(found)}
    data["note"] = f"measured on {found.measured[:10]} on {found.machine.name}"
    data = {key: value for key, value in data.items() if key not in ("source", "wires")}
    path = user_path(folder) / f"{name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error
    return path


def read(path: Path) -> Known:
    """The machine that a file describes. Raises ValueError, in a sentence that names the file."""
    where = f"the machine file {path}"
    try:
        data = read_object(path, where)
    except FileNotFoundError:
        raise ValueError(f"{where} is not there") from None
    base: dict[str, Any] = {"device": "cuda", "name": path.stem, "source": "file"}
    if (like := data.pop("like", None)) is not None:
        if like not in published.names():
            able = ", ".join(published.names())
            raise ValueError(f"{where}: like is {like!r}; it must be one of {able}")
        on = known(like)
        base = {**asdict(on.hardware), **base}
        base["flops_per_s"] = {dtype: min(rates) for dtype, rates in on.flops_per_s.items()}
    data = {**base, **data}
    for name in ("device_bytes", "host_bytes"):
        if isinstance(data.get(name), str):
            try:
                data[name] = parse_bytes(data[name])
            except ValueError as error:
                raise ValueError(f"{where}: {name}: {error}") from None
    note = read_as(str, data.pop("note", "rates are those of the file"), f"{where}: note")
    flops = read_as(dict[str, float], data.pop("flops_per_s", {}), f"{where}: flops_per_s")
    if not flops or flops.keys() - VALUE_BYTES.keys():
        raise ValueError(
            f"{where}: flops_per_s is {flops}; it must tell operations a second of layers by dtype,"
            ' such as {"fp32": 3e13, "bf16": 8e13}'
        )
    data.setdefault("matmul_flops_per_s", max(flops.values()))
    there = read_as(Hardware, data, where)
    numbers = {field.name: getattr(there, field.name) for field in fields(Hardware)} | flops
    numbers |= {f"slowdowns[{pair}]": factor for pair, factor in there.slowdowns.items()}
    for name, value in numbers.items():
        low = name in SMALLEST_RATES
        if isinstance(value, int | float) and (value < 0 or value == 0 and not low):
            raise ValueError(f"{where}: {name} is {value:g}; it must be {'0 or ' * low}more than 0")
    if (there.source, there.device) not in (("file", "cuda"), ("file", "cpu")):
        raise ValueError(
            f"{where}: device is {there.device!r}, which must be cuda or cpu, and source "
            f"{there.source!r}, which is to be left out"
        )
    return Known(hardware=there, flops_per_s={k: (v, v) for k, v in flops.items()}, note=note)
