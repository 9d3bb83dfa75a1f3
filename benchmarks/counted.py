"""Bytes that layers need, counted without running them, beside those measured on a GPU.

    python -m benchmarks.counted [--only TEXT] [--out FOLDER]

A plan for a machine by its name counts (workbench/published), a run measures (workbench/profile).
Each case is a model, the samples of a micro-batch, a number format, and whether blocks are
compiled. Of each the table has the device bytes of the smallest layout there is, L2L's with one
layer at a time, by both, and their ratio; the file has the bytes of every kind of layer, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from workbench.core import methods
from workbench.core.bytesize import format_bytes
from workbench.core.files import write_whole
from workbench.core.model_spec import ModelSpec
from workbench.core.options import choose
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.base import LayeredModel
from workbench.model.hf_config import spec_from_config
from workbench.profile.alone import Setting
from workbench.profile.footprint import footprints
from workbench.profile.profile import Profile
from workbench.published import hardware

MACHINE = "h200-141gb"
MODELS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
DECODERS: dict[str, dict[str, Any]] = MODELS["decoders"]
DEPTH = {"num_hidden_layers": 4, "max_position_embeddings": 8192}
GPTS = {name: ModelSpec(**sizes) for name, sizes in MODELS["gpts"].items()}


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    model: ModelSpec
    microbatch: int
    dtype: str = "bf16"
    compile: str = "off"

    @property
    def label(self) -> str:
        how = "compiled" if self.compile == "on" else "eager"
        return f"{self.name}, {self.microbatch} x {self.model.seq}, {self.dtype}, {how}"

    def spec(self) -> RunSpec:
        return RunSpec(
            method="l2l", options=choose("l2l", {}), model=self.model, batch=self.microbatch,
            dtype=self.dtype, compile=self.compile, steps=1, clip=1.0,
        )  # fmt: skip


def cases(folder: Path) -> list[Case]:
    """All cases; configurations of decoders are written to a folder."""
    found = [
        Case(name=name, model=model, microbatch=samples, dtype=dtype, compile=compiled)
        for name, model in GPTS.items()
        for samples, dtype, compiled in (
            (4, "bf16", "on"), (1, "bf16", "on"), (4, "bf16", "off"), (2, "fp32", "off"),
        )
    ]  # fmt: skip
    for number, (name, config) in enumerate(DECODERS.items()):
        path = folder / f"{number}.json"
        path.write_text(json.dumps(config | DEPTH))
        model = spec_from_config(path, seq=2048)
        found += [
            Case(name=name, model=model, microbatch=samples, dtype=dtype)
            for samples, dtype in ((1, "bf16"), (4, "bf16"), (1, "fp32"))
        ]
    return found


def measured(case: Case, counted: Profile, model: LayeredModel) -> Profile:
    """The counted profile with bytes that this GPU's allocator saw."""
    torch.cuda.empty_cache()
    size, how = (case.microbatch, case.model.seq), {"dtype": case.dtype, "compile": case.compile}
    found, libraries = footprints(Setting.of_tokens(model, size, device="cuda", **how))
    units = tuple(replace(unit, **found[unit.kind]) for unit in counted.units)
    return replace(counted, units=units, library_bytes=libraries)


def smallest(case: Case, profile: Profile) -> int:
    return methods.load("l2l").plan(case.spec(), profile).peak_bytes["device"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="cases whose label has this text")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), metavar="FOLDER")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device is here to measure on", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows, worst = [], 0.0
    for case in cases(arguments.out):
        if arguments.only not in case.label:
            continue
        model = make_model(case.model)
        counted = hardware.profile(MACHINE, case.model, case.microbatch, case.dtype, case.compile)
        seen = measured(case, counted, model)
        needs = {"counted": smallest(case, counted), "measured": smallest(case, seen)}
        ratio = needs["counted"] / needs["measured"]
        worst = max(worst, abs(ratio - 1))
        print(
            f"{case.label:50} {format_bytes(needs['measured']):>10} measured, "
            f"{format_bytes(needs['counted']):>10} counted, ratio {ratio:.3f}",
            flush=True,
        )
        units = {
            what: {unit.kind: asdict(unit) for unit in profile.units}
            for what, profile in (("counted", counted), ("measured", seen))
        }
        rows.append({"case": case.label, **needs, "libraries": seen.library_bytes, "units": units})
    about = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": rows,
    }  # fmt: skip
    write_whole(arguments.out / "counted.json", json.dumps(about, indent=1) + "\n")
    print(f"at worst {worst:.1%} apart")
    return 0


if __name__ == "__main__":
    sys.exit(main())
