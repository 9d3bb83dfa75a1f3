"""What the host AdamW makes of the memory it works in.

    python benchmarks/host_adam.py [--seconds 0.6] [--hidden 2048] [--layers 8] [--json PATH]

The work is that of offloaded layers, in turn, so that no layer is still in a cache when its turn
comes again. Rows, each with the median over calls and the best of them (a machine may be shared):

* ceilings: passes of a small C++ kernel (``dram.cpp``), built like the optimizer, over large
  arrays: read, fill, copy, and update in place, which is nearest to what an optimizer does;
* the update of fp32 layers (28 bytes per parameter), of bf16 layers with split masters (26), and
  of these with an earlier update undone in the same pass (26), by number of threads;
* the same in a cache, by one thread: what the arithmetic alone allows;
* the kernel compiled otherwise (in three rounds, since a machine changes), and in memory of other
  kinds: which of them to keep.

GB/s counts what an update must read and write. Memory is what the runtime takes (``slab``, pinned
where there is a CUDA device), unless a row says otherwise.
"""

import argparse
import contextlib
import ctypes
import functools
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor

from workbench.core import native
from workbench.core.host import available_cores
from workbench.runtime import host_adam
from workbench.runtime.split import split
from workbench.runtime.tiers import Tier, slab

BYTES = {"fp32": 28, "split": 26, "split + undo": 26}
COUNTS = (1, 4, 8, 12, 14, 16)
PASSES = {"read": 8, "fill": 8, "copy": 16, "update in place": 16}  # bytes per 8-byte word
VARIANTS = {
    "as built": (),
    "no prefetch": ("-DWORKBENCH_PREFETCH=0",),
    "prefetch 1024 ahead": ("-DWORKBENCH_PREFETCH=1024",),
    "prefetch 2048 ahead": ("-DWORKBENCH_PREFETCH=2048",),
    "prefetch past outer caches": ("-DWORKBENCH_LOCALITY=0",),
    "vectors of 256 bits": ("-mprefer-vector-width=256",),
    "blocks of 64 Ki": ("-DWORKBENCH_LEAST_BLOCK=65536", "-DWORKBENCH_MOST_BLOCK=65536"),
    "blocks of 16 Ki to 4 Mi": ("-DWORKBENCH_MOST_BLOCK=(1<<22)",),
}
ROUNDS = 3
Kernel = Callable[[host_adam.Call], None]
Take = Callable[[int], Tensor]


def step(grad_scale: float) -> host_adam.AdamStep:
    return host_adam.AdamStep(
        step=10, lr=1e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_scale=grad_scale
    )


GUESS, RIGHT = step(1.0), step(0.5)


class Layer:
    """fp32 slabs of one layer; split masters and bf16 gradients use the same bytes."""

    def __init__(self, numel: int, take: Take, like: "Layer | None" = None) -> None:
        self.master, self.exp_avg, self.exp_avg_sq, self.grad = (
            take(4 * numel).view(torch.float32) for _ in range(4)
        )
        self.weights = self.master.view(torch.bfloat16)[:numel]
        self.rest = self.master.view(torch.int16)[numel:]
        self.narrow_grad = self.grad.view(torch.bfloat16)[:numel]
        if like is not None:
            self.copy(like)
            return
        self.master.normal_(0, 0.02)
        self.exp_avg.normal_(0, 1e-3)
        self.exp_avg_sq.uniform_(0, 1e-6)
        self.grad.normal_(0, 1e-3)

    def copy(self, other: "Layer") -> None:
        for name in ("master", "exp_avg", "exp_avg_sq", "grad"):
            getattr(self, name).copy_(getattr(other, name))

    def narrow(self) -> None:
        master, grad = self.master.clone(), self.grad.clone()
        split(master, self.weights, self.rest)
        self.narrow_grad.copy_(grad)

    def calls(self, form: str, threads: int) -> list[host_adam.Call]:
        """What to do to this layer in its turns, one after the other."""
        narrow = form != "fp32"
        slabs = (
            self.weights if narrow else self.master,
            self.exp_avg,
            self.exp_avg_sq,
            self.narrow_grad if narrow else self.grad,
        )
        turns = [(GUESS, RIGHT), (RIGHT, GUESS)] if form == "split + undo" else [(None, RIGHT)]
        where = {"decay_split": slabs[0].numel(), "rest": self.rest if narrow else None}
        return [
            host_adam.Call.of(*slabs, hyper, **where, undo=undo, threads=threads)
            for undo, hyper in turns
        ]


def times(works: Iterable[Callable[[], object]], seconds: float) -> list[float]:
    """Seconds of the works, in turn and again; the first is a warm-up."""
    works = cycle(works)
    next(works)()
    found, deadline = [], time.perf_counter() + seconds
    while not found or time.perf_counter() < deadline:
        begin = time.perf_counter()
        next(works)()
        found.append(time.perf_counter() - begin)
    return found


def updates(
    kernel: Kernel, form: str, layers: list[Layer], threads: int, seconds: float
) -> list[float]:
    # Each layer once, then each again, in the order that undoing needs.
    turns = zip(*(layer.calls(form, threads) for layer in layers), strict=True)
    return times([lambda call=call: kernel(call) for turn in turns for call in turn], seconds)


class Table:
    """Prints rows as they come and keeps them for JSON."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def add(
        self, what: str, threads: int, nbytes: int, found: list[float], numel: int | None = None
    ) -> None:
        """``found``: seconds of each call. ``nbytes``: what one of them moves."""
        median, best = statistics.median(found), min(found)
        numbers = {"GB/s": nbytes / median / 1e9, "best GB/s": nbytes / best / 1e9}
        if numel is not None:
            rates = {"G params/s": numel / median / 1e9, "best G params/s": numel / best / 1e9}
            numbers = rates | numbers
        self.rows.append({"what": what, "threads": threads, "calls": len(found), **numbers})
        shown = "  ".join(f"{value:7.2f} {name}" for name, value in numbers.items())
        print(f"{what:40s} {threads:3d} threads  {shown}", flush=True)

    def add_updates(
        self, what: str, form: str, layers: list[Layer], threads: int, found: list[float]
    ) -> None:
        numel = layers[0].master.numel()
        self.add(what, threads, BYTES[form] * numel, found, numel)


def ceilings(table: Table, counts: list[int], seconds: float) -> None:
    words = 1 << 27
    a, b = (unpinned(8 * words).fill_(1) for _ in range(2))
    function = native.load(Path(__file__).with_name("dram.cpp")).memory_pass
    function.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p) + 2 * (ctypes.c_int64,)
    for kind, (name, nbytes) in enumerate(PASSES.items()):
        for threads in (counts[0], counts[-1]):
            work = functools.partial(function, kind, a.data_ptr(), b.data_ptr(), words, threads)
            table.add(f"ceiling: {name}", threads, nbytes * words, times([work], seconds))


@contextlib.contextmanager
def runtime_memory() -> Iterator[Take]:
    """As the runtime takes it."""
    tier = Tier("host")
    with contextlib.ExitStack() as owned:

        def take(nbytes: int) -> Tensor:
            label = f"slab {len(tier.held())}"
            return owned.enter_context(slab(tier, label, nbytes, pin=True)).tensor

        yield take


def unpinned(nbytes: int, advice: int = mmap.MADV_HUGEPAGE) -> Tensor:
    """A map of this process alone, which may have huge pages where shared ones may not."""
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(advice)
    return torch.frombuffer(pages, dtype=torch.uint8)


def huge_share(tensor: Tensor) -> float:
    """How much of the map that a tensor begins in has huge pages, from 0 to 1."""
    inside, found = False, {"Size:": 0, "AnonHugePages:": 0, "ShmemPmdMapped:": 0}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *others = line.split()
        if not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= tensor.data_ptr() < end
        elif inside and first in found:
            found[first] = int(others[0])
    size, *huge = found.values()
    return sum(huge) / max(1, size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.6, help="per row")
    parser.add_argument("--hidden", type=int, default=2048, help="a layer has 12 hidden^2 + more")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    cores = available_cores()
    torch.set_num_threads(cores)
    counts = sorted({*(count for count in COUNTS if count < cores), min(cores, COUNTS[-1])})
    most, numel = counts[-1], 12 * args.hidden**2 + 13 * args.hidden
    table, kernel, seconds = Table(), host_adam.load(), args.seconds
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line for line in lines if "model name" in line), "processor: unknown")
    cpu = cpu.split(":")[1].strip()
    print(f"{cpu}, {cores} of {os.cpu_count()} cores; layers of {numel / 1e6:.1f} M parameters")
    ceilings(table, counts, seconds / 2)

    cached = [Layer(1 << 15, unpinned)]
    cached[0].narrow()
    for form in ("split", "split + undo"):
        found = updates(kernel, form, cached, 1, seconds / 2)
        table.add_updates(f"{form}, 32 Ki parameters in a cache", form, cached, 1, found)

    template, huge = Layer(numel, unpinned), {}
    with runtime_memory() as take:
        layers = [Layer(numel, take, like=template) for _ in range(args.layers)]
        huge["the runtime takes"] = huge_share(layers[0].exp_avg)
        for threads in counts:
            found = updates(kernel, "fp32", layers, threads, seconds)
            table.add_updates("fp32", "fp32", layers, threads, found)
        template.narrow()
        for layer in layers:
            layer.copy(template)
        for form in ("split", "split + undo"):
            for threads in counts:
                found = updates(kernel, form, layers, threads, seconds)
                table.add_updates(form, form, layers, threads, found)
        variants = {name: host_adam.load(flags) for name, flags in VARIANTS.items()}
        by_name: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(ROUNDS):
            for name, variant in variants.items():
                by_name[name] += updates(variant, "split", layers, most, seconds / ROUNDS)
        for name, found in by_name.items():
            table.add_updates(f"split, {name}", "split", layers, most, found)
        del layers, layer

    kinds = {"with huge pages": mmap.MADV_HUGEPAGE, "without": mmap.MADV_NOHUGEPAGE}
    for name, advice in kinds.items():
        take = functools.partial(unpinned, advice=advice)
        layers = [Layer(numel, take, like=template) for _ in range(args.layers // 2)]
        huge[f"unpinned {name}"] = huge_share(layers[0].exp_avg)
        found = updates(kernel, "split", layers, most, seconds)
        table.add_updates(f"split, unpinned {name}", "split", layers, most, found)
        del layers
    for name, share in huge.items():
        print(f"memory {name}: {share:.0%} huge pages")
    if args.json:
        rows = {"cpu": cpu, "cores": cores, "numel": numel, "huge": huge, "rows": table.rows}
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
