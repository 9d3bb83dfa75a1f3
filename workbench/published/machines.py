"""Machines that plans are asked for: this one, one that is known by name, and one from a file.

This machine's memory is what runs have: its GPU's, or a counted share of the host's
(profile/machine.py). Its rates are measured (`workbench doctor`), else those of its GPU's
datasheet, else none are known. A file is written by `workbench doctor --save`, or by hand; with
``like``, all that is not said is as on that machine. Fields are those of `Hardware`, and
``flops_per_s`` of layers by dtype:

    {"like": "rtx4090-24gb", "host_bytes": "128GiB", "disk_read_bytes_per_s": 7e9}
"""

from __future__ import annotations

import re
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

from workbench.core.bytesize import parse_bytes
from workbench.core.paths import user_path
from workbench.core.schema import read_as
from workbench.core.sealed import read_sealed, write_sealed
from workbench.core.spec import VALUE_BYTES
from workbench.profile.machine import Machine, this_machine
from workbench.profile.profile import Hardware
from workbench.profile.store import ceilings
from workbench.profile.table import Ceilings
from workbench.published import hardware as published
from workbench.published.hardware import Known, known

FOLDER = "machines"
"""Of a results folder, with files of machines."""
PRODUCTS = {"fp32": "matrix product, float32", "bf16": "matrix product, bfloat16"}
LAYERS = 0.6
"""Share of the rate of matrix products that layers reach: 0.4 to 0.6 was seen on two cores, 0.5 to
0.8 on an H100."""
HOW = '`workbench plan --measure` measures it, or "Examine this machine" on the page'


def names(results: Path) -> list[str]:
    """Machines that have a name: known ones, and those saved among the results."""
    return [*published.names(), *sorted(path.stem for path in (results / FOLDER).glob("*.json"))]


def find(name: str, results: Path) -> Known:
    """The machine of that name or of a part of it (``4090``), or of the file ``NAME.json``. Raises
    ValueError, for a part of several names, too."""
    if name.endswith(".json"):
        return read(user_path(name))
    every = names(results)
    bare = {each: re.sub(r"[^a-z0-9]", "", each.lower()) for each in (name, *every)}
    if name not in every and bare[name]:
        like = [each for each in every if bare[name] in bare[each]] or [name]
        if len(like) > 1:
            raise ValueError(f"--machine {name} may be {' or '.join(like)}: say which")
        name = like[0]
    saved = results / FOLDER / f"{name}.json"
    return read(saved) if name not in published.names() and saved.exists() else known(name)


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
    like = next((name for name in published.names() if own.gpu and _is(own, name)), None)
    base, (device_bytes, host_bytes) = known(like or published.DEFAULT), own.tiers()
    there = replace(
        base.hardware, name=own.name, source="estimated" if like else "unmeasured",
        device=own.device, cores=own.cores, device_bytes=device_bytes, host_bytes=host_bytes,
        **published.DISK,
    )  # fmt: skip
    flops, note = base.flops_per_s, f"times are estimated, with rates of {like}: {base.note}; {HOW}"
    if not like:
        flops = dict.fromkeys(VALUE_BYTES, flops["fp32"])
        note = f"this machine has not been measured, so no times are told: {HOW}"
    return Known(hardware=there, flops_per_s=flops, note=note)


def _is(own: Machine, name: str) -> bool:
    """Whether this machine's GPU is that of a known machine, by its name and memory."""
    alike = name.partition("-")[0] in own.gpu.lower().replace(" ", "")
    return alike and abs(own.tiers()[0] / known(name).hardware.device_bytes - 1) < 0.15


def _layers(found: Ceilings) -> dict[str, float]:
    """dtype -> operations a second of layers, by the measured matrix products."""
    rates, default = {f.name: f.value for f in found.figures}, found.hardware.matmul_flops_per_s
    return {dtype: LAYERS * rates.get(name, default) for dtype, name in PRODUCTS.items()}


def check_name(name: str) -> None:
    """Raise ValueError for a name that a known machine has, or that no file can have."""
    if not re.fullmatch(r"\w[\w.-]*", name) or name in published.names():
        raise ValueError(
            f"{name!r} cannot be the name of a machine of one's own: give letters, digits, - and "
            f"_, and none of {', '.join(published.names())}"
        )


def save(name: str, found: Ceilings, folder: Path) -> Path:
    """Write a measured machine as ``FOLDER/NAME.json``. Raises ValueError as `check_name` does, and
    OSError where the folder cannot be written."""
    check_name(name)
    data = asdict(found.hardware) | {"name": name, "flops_per_s": _layers(found)}
    data["note"] = (
        f"measured on {found.measured[:10]} on {found.machine.name}, but for passes, which are "
        f"assumed to reach {LAYERS:.0%} of the rate of its matrix products"
    )
    del data["source"], data["wires"]
    path = user_path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, data)
    return path


def read(path: Path) -> Known:
    """The machine that a file describes. Raises ValueError, in a sentence that names the file."""
    where = f"the machine file {path}"
    try:
        return _read(path, where)
    except FileNotFoundError:
        raise ValueError(f"{where} is not there") from None
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix(where).strip(' :')}") from None


def _read(path: Path, where: str) -> Known:
    data, base = read_as(dict[str, Any], read_sealed(path, where), where), {}
    if like := data.pop("like", ""):
        if like not in published.names():
            raise ValueError(f"like is {like!r}; it must be one of {', '.join(published.names())}")
        base: dict[str, Any] = asdict(known(like).hardware)
        base["flops_per_s"] = {k: min(rates) for k, rates in known(like).flops_per_s.items()}
    data = {**base, "device": "cuda", "name": path.stem, **data, "source": "file"}
    for name in ("device_bytes", "host_bytes"):
        if isinstance(data.get(name), str):
            data[name] = parse_bytes(data[name])
    note = read_as(str, data.pop("note", "rates are those of the file"), "note")
    flops = read_as(dict[str, float], data.pop("flops_per_s", {}), "flops_per_s")
    if not flops or flops.keys() - VALUE_BYTES.keys() or data["device"] not in ("cuda", "cpu"):
        raise ValueError(
            f"device is {data['device']!r}, and must be cuda or cpu; flops_per_s is {flops}, and "
            'must be operations a second of layers, such as {"fp32": 3e13, "bf16": 8e13}'
        )
    there = read_as(Hardware, {"matmul_flops_per_s": max(flops.values()), **data}, "")
    needed = {each.name for each in fields(Hardware) if each.default is MISSING} | flops.keys()
    for name, value in {**asdict(there), **flops, **there.slowdowns}.items():
        if isinstance(value, int | float) and (value < 0 or value == 0 and name in needed):
            raise ValueError(f"{name} is {value:g}; it must be more than 0")
    return Known(hardware=there, flops_per_s={k: (v, v) for k, v in flops.items()}, note=note)
