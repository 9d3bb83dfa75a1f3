"""The two kernels of the device, AdamW and the loss head, beside what the device allows.

    python benchmarks/device_kernels.py [--json PATH] [--bandwidth 4.3e12]

AdamW: parameters per second of calls back to back, and the share of the ceiling, which is the
memory's bandwidth over the bytes that an update must move. A slab of 4 M parameters is 56 MB, of
which a cache keeps much, so there the share can pass 100 %. The error is the number of values that
are not the host's to the bit.

Loss head: milliseconds for forward and backward pass with both gradients, and the most memory that
was allocated beyond inputs and gradients. ``products`` are its three matrix products alone. The
error is that of the gradients against fp32, relative, as norms. Medians.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.core.native import triton_works
from workbench.model.loss import linear_cross_entropy
from workbench.runtime import device_adam, host_adam
from workbench.runtime.adam_step import AdamStep

HIDDEN = 2048
HYPER = AdamStep(step=10, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)


def median_s(work: Callable[[], object], calls: int) -> float:
    """Seconds of a call, from nine rows of ``calls`` that the host issues without waiting."""
    work()  # compiles
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(9):
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / calls)
    return statistics.median(times)


def slabs(numel: int, *, narrow: bool, device: str) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    weights, grad = (torch.randn(numel, generator=generator) for _ in range(2))
    return {
        "weights": weights.to(device, torch.bfloat16 if narrow else torch.float32),
        "exp_avg": torch.zeros(numel, device=device),
        "exp_avg_sq": torch.zeros(numel, device=device),
        "grad": grad.to(device, torch.bfloat16),
        "rest": torch.zeros(numel, dtype=torch.int16, device=device) if narrow else None,
    }


def adam(numel: int, bandwidth: float, *, narrow: bool) -> dict[str, object]:
    border = numel // 2
    ours, theirs = (slabs(numel, narrow=narrow, device=device) for device in ("cuda", "cpu"))
    for _ in range(3):
        device_adam.update(**ours, hyper=HYPER, decay_split=border)
        host_adam.update(**theirs, hyper=HYPER, decay_split=border, threads=8)
    differ = sum(
        int((tensor.cpu() != theirs[name]).sum())
        for name, tensor in ours.items()
        if tensor is not None
    )
    seconds = median_s(lambda: device_adam.update(**ours, hyper=HYPER, decay_split=border), 20)
    ceiling = bandwidth / 26
    return {
        "kernel": "AdamW",
        "master": "bf16 + int16" if narrow else "fp32",
        "parameters": numel,
        "params_per_s": numel / seconds,
        "share_of_ceiling": numel / seconds / ceiling,
        "values_unlike_host": differ,
    }


def plain(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight).float(), targets)


def products(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The three products of the head in one piece, on logits that are not their gradient."""
    columns = -(-len(weight) // 64) * 64
    logits = x.new_empty(len(x), columns)[:, : len(weight)]
    torch.mm(x, weight.t(), out=logits)
    torch.mm(logits, weight)
    return torch.mm(logits.t(), x)


def head(tokens: int, vocab: int) -> list[dict[str, object]]:
    torch.manual_seed(0)
    x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(vocab, HIDDEN, device="cuda").mul_(0.02).bfloat16()
    targets = torch.randint(vocab, (tokens,), device="cuda")
    inputs = x.requires_grad_(), weight.requires_grad_()

    def once(form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        x.grad = weight.grad = None
        form(*inputs, targets).backward()

    exact = [t.detach().float().requires_grad_() for t in inputs] if tokens <= 4096 else None
    if exact:
        plain(*exact, targets).backward()
    rows = []
    for name, form in (("chunked", linear_cross_entropy), ("unchunked", plain)):
        seconds = median_s(lambda form=form: once(form), 3)
        x.grad = weight.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once(form)
        peak = torch.cuda.max_memory_allocated() - before - x.nbytes - weight.nbytes
        row = {"kernel": "loss head", "form": name, "tokens": tokens, "vocab": vocab}
        row |= {"ms": 1000 * seconds, "peak_mib": peak / 2**20}
        if exact:
            pairs = zip(("x", "weight"), inputs, exact, strict=True)
            for of, mine, reference in pairs:
                wrong = (mine.grad - reference.grad).norm() / reference.grad.norm()
                row[f"grad_{of}_error"] = float(wrong)
        rows.append(row)
    with torch.no_grad():
        row = {"kernel": "loss head", "form": "products", "tokens": tokens, "vocab": vocab}
        rows.append(row | {"ms": 1000 * median_s(lambda: products(*inputs, targets), 3)})
    return rows


def line(row: dict[str, object]) -> str:
    if row["kernel"] == "AdamW":
        rate, share = row["params_per_s"] / 1e9, row["share_of_ceiling"]
        return (
            f"AdamW  {row['master']:13s} {row['parameters'] / 1e6:6.1f} M parameters  "
            f"{rate:6.1f} G params/s, {share:4.0%} of the ceiling  "
            f"{row['values_unlike_host']} values unlike the host's"
        )
    text = (
        f"loss   {row['form']:9s} {row['tokens']:6d} tokens x {row['vocab']}  {row['ms']:7.2f} ms"
    )
    if "peak_mib" in row:
        text += f"  {row['peak_mib']:7.0f} MiB"
    if "grad_x_error" in row:
        text += f"  error {row['grad_x_error']:.1e} (x), {row['grad_weight_error']:.1e} (weight)"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where to write the rows as well")
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes/s of device memory")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    form = "Triton" if triton_works() else "torch calls"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, kernels: {form}")
    rows = []
    for numel in (50_400_000, 4_000_000):
        for narrow in (True, False):
            rows.append(adam(numel, args.bandwidth, narrow=narrow))
            print(line(rows[-1]), flush=True)
    for tokens, vocab in ((4 * 1024, 50_257), (4 * 1024, 50_304), (16 * 1024, 50_257)):
        for row in head(tokens, vocab):
            rows.append(row)
            print(line(row), flush=True)
    if args.json:
        facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "form": form}
        args.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
