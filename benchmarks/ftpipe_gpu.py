"""FTPipe's figures that one GPU gives; a processor plays it with ``--size smoke``.

    python -m benchmarks.ftpipe --only gpu-alike gpu-nodes --size smoke --out FOLDER

Each part stands for itself: it prints lines, and writes its rows to ``FOLDER/PART.json`` with the
machine they were measured on. A part whose file is there is printed from it. Rows say whether they
are measured or simulated from what was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.delayed import Delayed
from benchmarks.ftpipe_alone import AlikeUnits, MeasuredCosts, Shape, alone, load_ms
from benchmarks.rows import Rows, measured_lines, pairs_file
from workbench.core.division import packs_of
from workbench.core.files import write_whole
from workbench.core.model_spec import ModelSpec
from workbench.core.reporter import Untold
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.operator_graph import Traced
from workbench.methods.ftpipe.parts import cut_and_map
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.model import make_model
from workbench.model.named import NAMED
from workbench.partition.graph import Edge, Graph, Node, rows_of
from workbench.partition.methods import Ask, Partition, partition
from workbench.profile.store import silent
from workbench.runtime.memory.device_budget import device_meter
from workbench.schedule.simulate import simulate
from workbench.training import trained_ranks

MIXED, ONE = "0 1 0 1", "0 0 0 0"
GRAPH = "t5-calls.json"
ROOM = 1.2
"""Memory of a device, in even parts of all states."""
STATES = 16
"""Bytes of a weight, its gradient and two states in fp32."""
SIMULATED = 24
"""Steps of a pipeline that is simulated from what was measured."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Models and sizes of a set of parts."""

    small: ModelSpec
    small_cut: str
    large: ModelSpec
    large_cut: str
    wide: ModelSpec
    wide_cut: str
    t5: ModelSpec
    batch: int = 8
    steps: int = 20
    cap: int = 8 << 30
    """Bytes that the nodes of `t5` are profiled within."""
    devices: tuple[int, ...] = (2, 4, 8)
    samples: int = 4
    micros: int = 4


def _gpt(layers: int, hidden: int, seq: int, vocab: int) -> ModelSpec:
    sizes = {"layers": layers, "hidden": hidden, "heads": max(2, hidden // 64)}
    return ModelSpec(**sizes, seq=seq, vocab=vocab, tied=False)


def _t5(**sizes: Any) -> ModelSpec:
    return ModelSpec(**sizes, target_seq=4, tied=False)


TINY = {"family": "t5", "layers": 3, "decoder_layers": 3, "hidden": 16, "heads": 2, "seq": 24,
        "vocab": 258}  # fmt: skip
SIZES = {
    "full": Size(
        small=_gpt(6, 512, 256, 8192), small_cut="2 2 2 2",
        large=_t5(**NAMED["t5-large"]), large_cut="13 13 13 13",
        wide=_gpt(14, 1024, 512, 8192), wide_cut="4 4 4 4",
        t5=_t5(**NAMED["t5-3b"]),
    ),
    "smoke": Size(
        small=_gpt(4, 16, 8, 256), small_cut="2 1 1 2", large=_t5(**TINY),
        large_cut="3 2 3 2", wide=_gpt(4, 32, 16, 256), wide_cut="2 1 1 2", t5=_t5(**TINY),
        batch=4, steps=4, cap=64 << 20, devices=(2, 3), samples=2, micros=2,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The setting of all parts."""

    size: Size
    out: Path
    work: Path
    device: torch.device

    def spec(self, model: ModelSpec, cut: str, **more: Any) -> RunSpec:
        """A run of four stages."""
        values = {"text": pairs_file(self.work)} if model.family == "t5" else {}
        return RunSpec.of(
            method="ftpipe", model=model, cut=cut, batch=self.size.batch, microbatches=2,
            steps=self.size.steps, device=self.device.type, **{**values, **more},
        )  # fmt: skip

    def trained(self, spec: RunSpec, label: str) -> dict[str, Any]:
        """A run whose processes have one device in common; its losses, speed and memory."""
        count, options = len(spec.options.sizes), spec.options
        processes = options.processes(count, spec.ranks)
        found = trained_ranks.train(
            "workbench.methods.ftpipe", spec, Untold(), self.work / label,
            teller=processes[-1], devices=[0] * (1 + max(processes)),
        )  # fmt: skip
        seconds = median(found.step_seconds[len(found.step_seconds) // 2 :])
        return {
            "what": label, "source": "measured", "processes": 1 + max(processes),
            "map": options.map, "parameters": found.parameters, "losses": found.losses,
            "samples_per_s": spec.batch / seconds, "peak_bytes": found.peak_bytes["device"],
        }  # fmt: skip


def alike(bench: Bench, spec: RunSpec, label: str) -> Rows:
    """Two processes of one device beside the reference."""
    row = bench.trained(spec, label)
    reference = Delayed(spec, bench.work / f"{label}-reference", bench.device)
    wanted = [reference.step(step) for step in range(spec.steps)]
    apart = max(abs(a / b - 1) for a, b in zip(row["losses"], wanted, strict=True))
    return [row | {"reference": wanted, "apart": apart}]


def small(bench: Bench) -> Rows:
    size = bench.size
    return alike(bench, bench.spec(size.small, size.small_cut, map=MIXED, ranks=2), "gpt")


def large(bench: Bench) -> Rows:
    size = bench.size
    return alike(bench, bench.spec(size.large, size.large_cut, map=MIXED, ranks=2), "t5-large")


def processes(bench: Bench) -> Rows:
    """Four stages of one device in one process, in two and in four."""
    size = bench.size
    specs = {
        "one": {"map": ONE, "ranks": 1},
        "two": {"map": MIXED, "ranks": 2},
        "a process a stage": {"map": ONE, "ranks": 1, "process_per_stage": True},
    }
    return [
        bench.trained(bench.spec(size.wide, size.wide_cut, **each), label)
        for label, each in specs.items()
    ]


def nodes(bench: Bench) -> Rows:
    """The calls of T5, profiled one at a time within a cap; their graph is a file for ``workbench
    partition --graph``, which needs no GPU."""
    size, began = bench.size, time.monotonic()
    spec = RunSpec.of(method="ftpipe", model=size.t5, batch=size.samples, device=bench.device.type)
    traced = Traced(spec, basic=(), depth=None)
    traced_s, began = time.monotonic() - began, time.monotonic()
    meter = device_meter(bench.device, size.cap)
    with meter:
        graph = traced.graph(bench.work, silent, recompute=True, fresh=True)
    peak = meter.peak
    meter.close()
    write_whole(bench.out / GRAPH, json.dumps(rows_of(graph)) + "\n")
    row = {
        "what": "calls", "source": "measured", "nodes": len(graph.nodes), "traced_s": traced_s,
        "profiled_s": time.monotonic() - began, "cap_bytes": size.cap, "peak_bytes": peak,
        "forward_ms": sum(node.forward_ms for node in graph.nodes),
        "backward_ms": sum(node.backward_ms for node in graph.nodes),
    }  # fmt: skip
    return [row]


def _placed(graph: Graph, devices: int) -> tuple[dict[str, Partition], dict]:
    """The contiguous and the mixed stages within `ROOM`, and their slowest over the mean."""
    memory = ROOM * sum(node.bytes for node in graph.nodes) / devices
    found, row = {}, {"what": f"layers on {devices} devices", "source": "measured"}
    for method in ("pipedream", "mpipe"):
        ask = Ask(method=method, devices=devices, memory=memory, cheap_last=True)
        try:
            found[method] = partition(graph, ask)
            loads = found[method].loads_ms
            row[method] = found[method].objective_ms * devices / sum(loads)
            row[f"{method}_mean_ms"] = sum(loads) / devices
        except ValueError as error:
            row[method] = str(error)
    return found, row


def stages(bench: Bench) -> Rows:
    """Stages of T5's layers, each device by itself, and the pipeline simulated from that."""
    size = bench.size
    model = AlikeUnits(make_model(size.t5))
    shape = Shape(spec=size.t5, model=model, samples=size.samples, device=bench.device)
    times: dict[str, tuple[float, float]] = {}
    for unit in range(model.num_units):
        if model.kind(unit) not in times:
            times[model.kind(unit)] = shape.unit_ms(unit)
    graph, rows = _layers(shape, times), []
    for devices in size.devices:
        found, row = _placed(graph, devices)
        rows.append(row)
        for method, each in found.items():
            rows.append(_device_by_device(bench, shape, each, f"{method}, {devices} devices"))
    return rows


def _layers(shape: Shape, times: dict[str, tuple[float, float]]) -> Graph:
    model, made = shape.model, []
    for unit in range(model.num_units):
        forward, both = times[model.kind(unit)]
        numbers = sum(weight.numel() for weight in model.skeleton(unit).parameters())
        made.append(
            Node(id=str(unit), forward_ms=forward, backward_ms=both, bytes=STATES * numbers,
                 backward_kept_ms=max(0.0, both - forward))
        )  # fmt: skip
    edges = [
        Edge(source=str(unit - 1), target=str(unit), bytes=shape.message_bytes(unit))
        for unit in range(1, model.num_units)
    ]
    return Graph(nodes=made, edges=edges)


def _device_by_device(bench: Bench, shape: Shape, found: Partition, label: str) -> dict:
    cut, places = cut_and_map(found)
    positions, own = [*map(int, places.split())], packs_of([*map(int, cut.split())])
    line = Asynchronous(
        label="async-1f1b", positions=positions, depths=[*reversed(range(len(own)))],
        micros=bench.size.micros, samples=shape.samples, sizes=IdealSizes(),
    )  # fmt: skip
    made, measured, loads, peaks = schedule(line), {}, [], []
    for rank in range(made.num_ranks):
        seconds, peak = alone(shape, line, own, rank, steps=2)
        measured |= seconds
        loads.append(load_ms(seconds, made, rank))
        peaks.append(peak)
    costs = MeasuredCosts(shape, own, measured)
    ends = simulate(made, costs, steps=SIMULATED).step_ends_s
    half = SIMULATED // 2
    step_s = (ends[-half // 2] - ends[half // 2]) / (SIMULATED - half)
    return {
        "what": label, "source": "loads and peaks measured, speed simulated from them",
        "cut": cut, "map": places, "load_ms": loads, "peak_bytes": peaks,
        "samples_per_s": line.micros * shape.samples / step_s,
        "busiest_share": max(loads) * line.micros / step_s / 1e3,
    }  # fmt: skip


PARTS: dict[str, Callable[[Bench], Rows]] = {
    "gpu-alike": small, "gpu-processes": processes, "gpu-nodes": nodes, "gpu-stages": stages,
    "gpu-large": large,
}  # fmt: skip


def lines(part: str, size: str, out: Path) -> Iterator[str]:
    """A part's lines, measured now unless its file is there."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def measure(work: Path) -> Rows:
        return PARTS[part](Bench(size=SIZES[size], out=out, work=work, device=device))

    return measured_lines(part, size, out, device.type, measure)
