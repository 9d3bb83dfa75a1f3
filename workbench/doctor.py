"""``workbench doctor``: what this machine can do, and what can run on it.

Measures the ceilings (profile/ceilings.py) and stores them for the planners, looks at the
software, and says of every method whether it runs here, of every size of the exhibits whether it
is within reach, and why not where it is not; and whether figures were measured now or earlier.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from baselines import deepspeed_ops
from workbench.cli.spec import Parser, add_results_flag
from workbench.core import host, methods
from workbench.core.bytesize import format_bytes, parse_bytes
from workbench.exhibits.dials import SIZES
from workbench.exhibits.stronghold.sizes import StrongholdSize, named
from workbench.profile import store
from workbench.profile.machine import Machine
from workbench.profile.table import Ceilings, Echo, format_figure
from workbench.published import machines
from workbench.runs.provenance import version_of
from workbench.runs.store import Store

LEAST_MEMORY, LEAST_DISK = parse_bytes("7GiB"), parse_bytes("2GiB")
"""Bytes that the smallest exhibits need: of a machine sold with 8 GiB, the system keeps some."""

FULL_SECONDS, QUICK_SECONDS = 0.25, 0.04
"""Length of one timing; about sixty make the table."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether something works here, and in words how, or why not."""

    name: str
    works: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All a doctor has to say."""

    ceilings: Ceilings
    measured_now: bool
    software: tuple[Finding, ...]
    methods: tuple[Finding, ...]
    sizes: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def examine(
    results: Path,
    echo: Echo = store.silent,
    *,
    device: str = "auto",
    stored: bool = False,
    seconds: float = FULL_SECONDS,
) -> Report:
    """Measure, store and look around; `stored` is content with ceilings that are stored and hold.

    Raises ValueError for a device that is not there, or results that cannot be written.
    """
    before = store.ceilings(results, device, echo, measure=False) if stored else None
    how = {"fresh": True, "disk": True, "seconds": seconds}
    ceilings = before or store.ceilings(results, device, echo, **how)
    return Report(
        ceilings=ceilings,
        measured_now=before is None,
        software=tuple(_software(results, ceilings.machine)),
        methods=tuple(_methods(ceilings.machine)),
        sizes=tuple(_sizes(ceilings.machine)),
    )


def _software(results: Path, here: Machine) -> list[Finding]:
    """Software that runs depend on besides the machine."""
    build, gpus = host.torch_build(), host.gpus()
    cuda = f"for CUDA {build.cuda}" if build and build.cuda else "for CPUs"
    compiler = deepspeed_ops.compiler()
    browser = _first(("chromium", "chromium-browser", "google-chrome"))
    free = shutil.disk_usage(results).free
    from workbench.runtime.updates import host_adam

    compiled = host_adam.backend() == "compiled"
    named = (f"{g.name}, {format_bytes(g.memory_bytes)}, driver {g.driver}" for g in gpus)
    no_gpu = "none: host memory and half of the cores play the device"
    one_pass = "compiled here, one pass"
    two_passes = "torch's fused AdamW, about half as fast: there is no compiler"
    aio = deepspeed_ops.has_libaio()
    no_browser = "none found; wanted by the browser tests only"
    return [
        Finding("python", True, platform.python_version()),
        Finding("torch", build is not None, f"{build.version}, {cuda}"),
        Finding("GPU", bool(gpus), "; ".join(named) or no_gpu),
        _package("deepspeed"),
        _operators(here),
        _package("megatron-core"),
        _package("transformers"),
        Finding("C++ compiler", compiler is not None, compiler or "none found"),
        Finding("host optimizer", True, one_pass if compiled else two_passes),
        Finding("libaio", aio, "found" if aio else deepspeed_ops.LIBAIO_HINT),
        Finding("Chromium", browser is not None, browser or no_browser),
        _fonts(),
        Finding("disk", free > LEAST_DISK, f"{format_bytes(free)} free in {results}"),
    ]


def _methods(here: Machine) -> list[Finding]:
    """Every method of the table, and what runs under its name on this machine."""
    how = {"megatron-lm": _megatron, "zero-infinity": _zero_infinity}
    return [
        Finding(row.name, *how.get(row.name, partial(_works, row))(here))
        for row in methods.known().values()
    ]


def _works(row: methods.Method, here: Machine) -> tuple[bool, str]:
    if row.needs == "deepspeed":
        return _deepspeed(here, disk=False)
    if row.needs and not version_of(row.needs):
        return False, f"{row.needs} is not installed"
    return True, row.summary


def _megatron(here: Machine) -> tuple[bool, str]:
    if here.device != "cuda":
        return True, "as plain resident training: megatron-core computes on CUDA devices only"
    if not version_of("megatron-core"):
        return True, "as plain resident training: megatron-core is not installed"
    return True, f"megatron-core {version('megatron-core')}"


def _deepspeed(here: Machine, *, disk: bool) -> tuple[bool, str]:
    """Whether DeepSpeed's operators are there, or can be built before the first run."""
    if not version_of("deepspeed"):
        return False, "DeepSpeed is not installed: `make setup` installs it"
    absent = deepspeed_ops.missing(
        deepspeed_ops.required(disk=disk, device=here.device), here.device
    )
    for name in absent:
        why = deepspeed_ops.why_not(name)
        if why is not None:
            return False, f"operator {name}: {why}"
    if absent:
        return True, f"after building {', '.join(absent)}, which takes minutes; `make setup` does"
    return True, f"DeepSpeed {version('deepspeed')}"


def _zero_infinity(here: Machine) -> tuple[bool, str]:
    on_host, detail = _deepspeed(here, disk=False)
    on_disk, why = _deepspeed(here, disk=True)
    if on_host and not on_disk:
        return True, f"{detail}, with host memory only; not on the disk: {why}"
    return on_host, why


def _sizes(here: Machine) -> list[Finding]:
    """Sizes of the exhibits that this machine can run for real."""
    found = []
    for name in SIZES:
        lacking = _lacking(named(name), here)
        instead = "; simulated on the published machine instead" if name == "paper" else ""
        detail = f"{lacking}{instead}" if lacking else "fits this machine"
        found.append(Finding(name, lacking is None, detail))
    return found


def _lacking(size: StrongholdSize, here: Machine) -> str | None:
    """Resources that a size needs and this machine lacks, in words."""
    if size.device == "cuda":
        if here.gpu is None:
            return "needs a GPU, and there is none"
        device = max(size.largest.device_memory, size.device_memory or 0)
        if here.gpu_bytes < device:
            return f"needs {format_bytes(device)} on the GPU, has {format_bytes(here.gpu_bytes)}"
    host = max(size.largest.host_memory, LEAST_MEMORY)
    if here.memory_bytes < host:
        return f"needs {format_bytes(host)} of memory, has {format_bytes(here.memory_bytes)}"
    return None


def _operators(here: Machine) -> Finding:
    """DeepSpeed's native code, built once into the environment."""
    name = "DeepSpeed operators"
    if not version_of("deepspeed"):
        return Finding(name, False, "DeepSpeed is not installed")
    absent = deepspeed_ops.missing(device=here.device)
    wanted = deepspeed_ops.required(disk=True, device=here.device)
    detail = ", ".join(f"{op} {'not built' if op in absent else 'built'}" for op in wanted)
    return Finding(name, not absent, detail)


def _fonts() -> Finding:
    """Figures bring their own; a browser needs the system's."""
    tool = shutil.which("fc-list")
    listed = tool and subprocess.run(
        [tool, ":", "family"], capture_output=True, text=True, timeout=20, check=False
    )
    count = len(set(listed.stdout.splitlines())) if listed else 0
    detail = f"{count} families" if count else "none found; a browser would draw boxes for letters"
    return Finding("fonts", count > 0, detail)


def _package(name: str) -> Finding:
    found = version_of(name)
    return Finding(name, found is not None, found or "not installed")


def _first(programs: Sequence[str]) -> str | None:
    return next((found for name in programs if (found := shutil.which(name))), None)


def render(report: Report) -> str:
    """The report as text."""
    ceilings = report.ceilings
    when = "now" if report.measured_now else f"on {ceilings.measured}, and stored since"
    lines = [f"{ceilings.machine.name}: measured {when}, in {ceilings.seconds:.0f} s", ""]
    width = max(len(figure.name) for figure in ceilings.figures)
    lines += [
        f"  {figure.name:{width}}  {format_figure(figure.value, figure.unit):>15}"
        f"  +- {figure.spread:.0%}"
        for figure in ceilings.figures
    ]
    hardware = ceilings.hardware
    lines += [
        "",
        f"  tiers: {format_bytes(hardware.device_bytes)} of device and "
        f"{format_bytes(hardware.host_bytes)} of host memory; host updates with "
        f"{hardware.adam_threads} thread{'s' * (hardware.adam_threads > 1)}",
    ]
    notes = list(ceilings.notes)
    if ceilings.others > 0.1:
        notes.append(
            f"other programs used up to {ceilings.others:.1f} of {ceilings.machine.cores} cores "
            "meanwhile: disk and link figures may be low; for better ones, run this again when "
            "the machine is idle"
        )
    lines += [f"  note: {note}" for note in notes]
    for title, findings in (
        ("software", report.software),
        ("methods", report.methods),
        ("sizes of the exhibits", report.sizes),
    ):
        width = max(len(finding.name) for finding in findings)
        lines += ["", title]
        lines += [
            f"  {'yes' if finding.works else 'no ':3}  {finding.name:{width}}  {finding.detail}"
            for finding in findings
        ]
    return "\n".join(lines)


def make_parser() -> Parser:
    """The verb's flags."""
    parser = Parser(
        prog="workbench doctor", description="Measure this machine and say what can run on it."
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="device to measure; auto (default) is a GPU where there is one",
    )  # fmt: skip
    add_results_flag(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--quick", action="store_true", help="shorter timings, a wider spread")
    parser.add_argument(
        "--stored", action="store_true", help="use stored measurements where they hold here"
    )
    parser.add_argument(
        "--save", metavar="NAME", help="write this machine as NAME.json, for plan --machine NAME"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to (default: machines, in the results)"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """The verb; raises ValueError for what a user got wrong."""
    options = make_parser().parse_args(argv)

    def echo(line: str) -> None:
        if not options.json:
            print(line, file=sys.stderr, flush=True)

    results = Store(options.results).root
    if options.save is not None:
        machines.check_name(options.save)
    report = examine(
        results,
        echo,
        device=options.device,
        stored=options.stored,
        seconds=QUICK_SECONDS if options.quick else FULL_SECONDS,
    )
    if options.save is not None:
        folder = options.out or results / machines.FOLDER
        path = machines.save(options.save, report.ceilings, folder)
        name = path if options.out else options.save
        echo(f"saved: {path}; it is for workbench plan --machine {name}")
    print(json.dumps(report.to_dict(), indent=1) if options.json else render(report))
    return 0
