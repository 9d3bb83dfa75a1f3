"""FTPipe's figures: partitions and how soon they are found, T5-3B by operation counts, and an
asynchronous pipeline of ranks that sleep beside its simulation. Those of GPUs are asked by their
names (ftpipe_gpu.py, ftpipe_two.py).

    python -m benchmarks.ftpipe
    python -m benchmarks.ftpipe --only exact t5
    python -m benchmarks.ftpipe --only gpu-alike --size smoke --out FOLDER

A line a figure, with what was aimed at. Times of partitions are seconds of a processor. Costs of
T5-3B are counted operations: they say how parts relate, not how long they take.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from workbench.exhibits.ftpipe.simulated import Costs
from workbench.methods.pipeline.asynchronous import schedule
from workbench.methods.pipeline.asynchronous_line import Asynchronous
from workbench.methods.pipeline.ideal import IdealSizes
from workbench.methods.pipeline.paced import Pace, run
from workbench.partition.graph import Edge, Graph, Node
from workbench.partition.methods import Ask, Partition, partition
from workbench.partition.mpipe import Mpipe
from workbench.partition.t5 import Shape, t5_graph
from workbench.runtime.transport import loopback
from workbench.schedule.action import Action, Kind
from workbench.schedule.simulate import simulate

BLOCK = "T5Block"
DEVICES = (2, 4, 8)
"""On which memory is limited."""
MAP, MICROS, STEPS = (0, 1, 2, 3, 0, 2), 2, 12
"""Device of each stage, micro-batches of an update and updates of the paced pipeline."""
FORWARD_S, BACKWARD_S = (0.02, 0.05, 0.02, 0.05, 0.02, 0.02), (0.04, 0.10, 0.04, 0.10, 0.04, 0.04)
FULL = 4
"""Steps after which the paced pipeline is full."""


def timed(graph: Graph, ask: Ask, settings: Mpipe | None = None) -> tuple[Partition, float]:
    """A partition, and the seconds of a processor that it took."""
    began = time.process_time()
    return partition(graph, ask, settings), time.process_time() - began


def chain(count: int, seed: int) -> Graph:
    """Blocks in a row, of 1 to 10 ms."""
    draw = Random(seed)
    works = [draw.uniform(1, 10) for _ in range(count)]
    nodes = [Node(id=str(n), forward_ms=w / 4, backward_ms=3 * w / 4, bytes=1) for n, w in
             enumerate(works)]  # fmt: skip
    return Graph(nodes=nodes, edges=[_edge(a, b) for a, b in pairwise(range(count))])


def layers(count: int, seed: int) -> Graph:
    """Nodes that read up to three of the eight before them."""
    draw = Random(seed)
    nodes = [Node(id=str(n), forward_ms=draw.random(), backward_ms=2 * draw.random(), bytes=1)
             for n in range(count)]  # fmt: skip
    reads = ({draw.randrange(max(0, n - 8), n) for _ in range(3)} for n in range(1, count))
    return Graph(
        nodes=nodes, edges=[_edge(a, n) for n, read in enumerate(reads, 1) for a in sorted(read)]
    )


def _edge(source: int, target: int) -> Edge:
    return Edge(source=str(source), target=str(target), bytes=1e3)


def exact() -> Iterator[str]:
    """How soon the exact method proves, and how near it comes."""
    for count, aim in ((16, "proved in 5 s"), (64, "within 2 % in 20 s")):
        runs = [timed(chain(count, seed), Ask(method="exact", devices=8)) for seed in range(5)]
        gap, took = max(found.gap for found, _ in runs), max(took for _, took in runs)
        yield f"exact, {count} blocks on 8 devices, worst of 5: gap {gap:.2%}, {took:.2f} s ({aim})"


def large() -> Iterator[str]:
    """How soon mixed stages of many nodes are found."""
    found, took = timed(layers(5000, 0), Ask(method="mpipe", devices=8))
    yield f"mpipe, 5,000 nodes on 8 devices: gap {found.gap:.2%}, {took:.1f} s (20 s)"


def t5() -> Iterator[str]:
    """T5-3B at 512/4 on 8 and 16 devices."""
    blocks, operators = (t5_graph(Shape(), blocks=whole) for whole in (True, False))
    best = float("inf")
    for count in (8, 10, 12, 14, 16, 24, 32, 48):
        found, took = timed(blocks, Ask(method="mpipe", devices=8), Mpipe(L=(count,)))
        slower = found.objective_ms / best - 1 if best < float("inf") else 0.0
        best = min(best, found.objective_ms)
        yield (
            f"T5-3B, 8 devices, L = {count}: {found.gap:.2%} over the bound (2 % from 16 on), "
            f"{max(0, slower):.2%} over fewer blocks (1 %), {took:.1f} s"
        )
    for name, graph, aim in (("whole blocks", blocks, 1.15), ("operators", operators, 1.05)):
        own = Mpipe(special_blocks=(BLOCK,))
        found, took = timed(graph, Ask(method="mpipe", devices=16), own)
        times = found.objective_ms / mean_ms(graph, 16)
        yield f"T5-3B, 16 devices, {name}: {times:.3f} of the mean ({aim}), {took:.1f} s"


def memory() -> Iterator[str]:
    """Slowest stages where memory is 15 and 20 % over even states, and where it is not limited."""
    graph = t5_graph(Shape())
    total, own = sum(node.bytes for node in graph.nodes), Mpipe(special_blocks=(BLOCK,))
    for devices in DEVICES:
        for share in (None, 1.15, 1.2):
            limit = share and share * total / devices
            told = []
            for method, settings in (("pipedream", None), ("mpipe", own)):
                ask = Ask(method=method, devices=devices, memory=limit)
                found = partition(graph, ask, settings)
                told.append(found.objective_ms / mean_ms(graph, devices))
            room = f"{share - 1:.0%} over even states" if share else "no limit"
            aim = "cut 1.65 to 1.72, mixed 1.05" if share else "cut 1.01 on 4"
            cut, mixed = told
            yield f"T5-3B, {devices} devices, {room}: cut {cut:.3f}, mixed {mixed:.3f} ({aim})"


def mean_ms(graph: Graph, devices: int) -> float:
    """Milliseconds of the mean device."""
    return sum(node.forward_ms + node.backward_ms for node in graph.nodes) / devices


COSTS = Costs(FORWARD_S, BACKWARD_S)


class Sleeping(Pace):
    """Passes sleep."""

    def __init__(self) -> None:
        self.updates: list[float] = []
        """When the first stage updated its weights."""

    def seconds(self, action: Action) -> float:
        return COSTS.seconds(action)

    def perform(self, action: Action, step: int) -> None:
        super().perform(action, step)
        if action.kind is Kind.UPDATE and action.unit == 0:
            self.updates.append(time.monotonic())


def paced() -> Iterator[str]:
    """Steps of an asynchronous pipeline of six stages on four ranks that sleep."""
    line = Asynchronous(
        label="async-1f1b", positions=MAP, depths=[*reversed(range(len(MAP)))], micros=MICROS,
        samples=1, sizes=IdealSizes(),
    )  # fmt: skip
    made = schedule(line)
    events = simulate(made, COSTS, steps=STEPS).events
    ends = [e.end_s for e in events if e.kind == Kind.UPDATE and e.unit == 0]
    with TemporaryDirectory() as folder:
        job = Path(folder), made
        mp.start_processes(_rank, job, nprocs=made.num_ranks, daemon=True, start_method="fork")
        took = json.loads((Path(folder) / "updates.json").read_text())
    seen, wanted = (
        median(b - a for a, b in pairwise(times[FULL - 1 : STEPS])) for times in (took, ends)
    )
    yield (
        f"paced, 6 stages on 4 ranks, map {' '.join(map(str, MAP))}: median step {seen:.4f} s, "
        f"simulated {wanted:.4f} s, {seen / wanted - 1:+.1%} (3 %)"
    )


def _rank(rank: int, folder: Path, made) -> None:
    torch.set_num_threads(1)
    loopback.join(torch.device("cpu"), file=folder / "ranks", rank=rank, ranks=made.num_ranks)
    pace = Sleeping()
    run(rank, made, pace, STEPS)
    if rank == 0:
        (folder / "updates.json").write_text(json.dumps(pace.updates))
    dist.destroy_process_group()


def digits() -> Iterator[str]:
    """Accuracy of each way to read weights, by seed."""
    from benchmarks import ftpipe_digits  # imports the engine

    yield from ftpipe_digits.digits()


def on_gpu(name: str, size: str, out: Path) -> Iterator[str]:
    """A figure of one GPU, or of two."""
    from benchmarks import ftpipe_gpu, ftpipe_two  # import the engine

    yield from ftpipe_two.lines(size, out) if name == TWO else ftpipe_gpu.lines(name, size, out)


TWO = "two-gpus"
ON_GPU = (TWO, "gpu-alike", "gpu-processes", "gpu-nodes", "gpu-stages", "gpu-large")
FIGURES: dict[str, Callable[[], Iterator[str]]] = {
    "exact": exact, "large": large, "t5": t5, "memory": memory, "paced": paced,
    "digits": digits,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; exit code 0."""
    parser = argparse.ArgumentParser(prog="benchmarks.ftpipe", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*FIGURES, *ON_GPU], default=[*FIGURES])
    parser.add_argument("--size", choices=("full", "smoke"), default="full", help="on GPUs")
    parser.add_argument(
        "--out", type=Path, default=Path("results/ftpipe-gpu"), help="of their rows"
    )
    given = parser.parse_args(argv)
    for name in given.only:
        found = FIGURES[name]() if name in FIGURES else on_gpu(name, given.size, given.out)
        for line in found:
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
