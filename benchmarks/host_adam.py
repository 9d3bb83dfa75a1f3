"""Updates per second of the host AdamW, by number of threads, beside the same work in torch calls.

    python benchmarks/host_adam.py [--millions 50] [--repeats 7]

The work is that of one offloaded layer: bf16 gradient in, fp32 states updated, bf16 working copy
out. ``torch, one call`` is torch's fused AdamW alone on gradients that are fp32 already; ``torch,
widen + update + narrow`` does the same work as the fused pass in whole-slab calls. Medians; GB/s
counts the 28 bytes per parameter that the work needs at least, so a path that moves more shows
less.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from workbench.runtime import host_adam


def median_s(work: Callable[[], None], repeats: int) -> float:
    work()  # faults the pages in
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--millions", type=float, default=50, help="parameters in the slab, in millions"
    )
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()

    numel = int(args.millions * 1e6)
    cores = len(os.sched_getaffinity(0))
    param, exp_avg, exp_avg_sq = torch.randn(numel), torch.zeros(numel), torch.zeros(numel)
    grad, working = torch.randn(numel).bfloat16(), torch.empty(numel, dtype=torch.bfloat16)
    hyper = host_adam.AdamStep(step=10, lr=1e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    step = torch.tensor(10.0)

    def kernel(threads: int) -> None:
        slabs = (param, exp_avg, exp_avg_sq, grad)
        host_adam.update(*slabs, hyper, decay_split=numel, working=working, threads=threads)

    def torch_update(wide: torch.Tensor) -> None:
        slabs = ([param], [wide], [exp_avg], [exp_avg_sq], [], [step])
        scalars = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}
        torch._fused_adamw_(*slabs, **scalars, amsgrad=False, maximize=False)

    def three_calls() -> None:
        torch_update(grad.float())
        working.copy_(param)

    print(f"{numel / 1e6:.0f} M parameters, {cores} cores, {host_adam.build(print)} kernel")
    counts = sorted({1, *(n for n in (2, 4, 8, 12, 16, 24, 32, 48, 64) if n < cores), cores})
    wide = grad.float()
    for threads in counts:
        torch.set_num_threads(threads)
        rows = {
            "one pass": median_s(lambda threads=threads: kernel(threads), args.repeats),
            "torch, one call": median_s(lambda: torch_update(wide), args.repeats),
            "torch, widen + update + narrow": median_s(three_calls, args.repeats),
        }
        for name, seconds in rows.items():
            rate = numel / seconds
            measured = f"{rate / 1e9:6.2f} G params/s  {28 * rate / 1e9:6.1f} GB/s"
            print(f"{threads:3d} threads  {name:31s} {measured}")


if __name__ == "__main__":
    main()
