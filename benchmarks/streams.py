"""A block's passes over a batch on one CUDA stream, beside halves of it on two streams at once.

    python -m benchmarks.streams [--json PATH]

STRONGHOLD (SC'22) runs micro-batches on several streams where one does not fill the GPU. Here two
halves that run at the same time need the device memory of the whole, which a planner is free to run
at once: streams pay only where the halves together are faster. All passes are recorded, so that no
launch comes late; a step of the block is its forward pass with what autograd keeps, and its
backward pass. Medians.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.device_kernels import median_s
from workbench.core.model_spec import ModelSpec
from workbench.model import make_model
from workbench.runtime.device_budget import device_meter
from workbench.runtime.replay import Chain, Replays
from workbench.runtime.storage import Flat
from workbench.runtime.template import Template

SEQ = 1024
SIZES = ((1024, 2), (1024, 4), (1600, 2), (1600, 4), (2048, 2), (2048, 4), (2048, 8), (4096, 2))
"""(hidden, samples)."""
CALLS = 20


def recorded(hidden: int, rows: int) -> Callable[[], None]:
    """A block's step over so many samples, launched on the current stream."""
    device, dtype = torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
    model = make_model(ModelSpec(layers=1, hidden=hidden, heads=hidden // 64, seq=SEQ))
    flat = Flat.of(model, 1)
    module = model.empty_module(1, device=device, dtype=dtype)
    flat.point_weights(module, torch.randn(flat.numel, device=device).mul_(0.02).to(dtype))
    template = Template(model, compiled=True)
    replays = Replays(template.block, (rows, SEQ, hidden), dtype, device_meter(device))
    chain = Chain(modules=(module,), parameters=(flat.parameters(module),), rows=rows)
    replays.record({}, {"block": chain})
    x = torch.randn(rows, SEQ, hidden, device=device).to(dtype)

    def step() -> None:
        replays.recompute("block", x)
        replays.backward("block", x)

    return step


def measured(hidden: int, samples: int) -> dict[str, float]:
    """Milliseconds of the whole, and of two halves one after the other and at once."""
    whole = recorded(hidden, samples)
    halves = [recorded(hidden, samples // 2) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in halves]

    def in_turn() -> None:
        for half in halves:
            half()

    def at_once() -> None:
        here = torch.cuda.current_stream()
        for half, stream in zip(halves, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                half()
        for stream in streams:
            here.wait_stream(stream)

    ways = {"whole": whole, "in_turn": in_turn, "at_once": at_once}
    return {f"{name}_ms": 1000 * median_s(way, CALLS) for name, way in ways.items()}


def main() -> int:
    """Exit code: 0 done; 2 no GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streams", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="where to write the rows as well")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    rows = []
    print("hidden samples  whole ms  halves: in turn  at once  at once over whole")
    for hidden, samples in SIZES:
        row = {"hidden": hidden, "samples": samples, "seq": SEQ, **measured(hidden, samples)}
        rows.append(row)
        ratio = row["at_once_ms"] / row["whole_ms"]
        print(
            f"{hidden:6d} {samples:7d} {row['whole_ms']:9.3f} {row['in_turn_ms']:16.3f} "
            f"{row['at_once_ms']:8.3f} {ratio:19.2f}",
            flush=True,
        )
    if options.json:
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
