"""What it costs to prove and to simulate a schedule, up to a million actions.

    python benchmarks/simulator.py [--largest 1000000]

The schedule is that of a planner of ours: layers streamed through a window of four, inputs stashed
on the host, two host workers, exact clipping. Linear cost shows as us/action that stay level, be it
layers or steps that grow.
"""

import argparse
import gc
import time

from workbench.methods.program import Layout, build
from workbench.profile.profile import Hardware, Profile, ProfileCosts, UnitCost
from workbench.schedule.schedule import Schedule
from workbench.schedule.simulate import simulate
from workbench.schedule.validate import validate

SIZES = ((10, 1), (100, 1), (100, 10), (1000, 10), (100, 1110), (11_100, 10))
"""(layers, steps)"""


def made_up_profile(layers: int) -> Profile:
    """Costs of the right order for layers of 50 M parameters; contention included."""
    block = UnitCost(
        kind="block",
        parameters=50_000_000,
        forward_s=0.010,
        recompute_s=0.011,
        backward_s=0.021,
        input_bytes=2**23,
        output_bytes=2**23,
        kept_bytes=2**27,
    )
    hardware = Hardware(
        name="made up",
        source="published",
        device="cuda",
        cores=16,
        device_bytes=2**35,
        host_bytes=2**40,
        h2d_bytes_per_s=5e10,
        d2h_bytes_per_s=5e10,
        host_adam_params_per_s=2.5e9,
        device_adam_params_per_s=1e11,
        matmul_flops_per_s=5e14,
        slowdowns={"compute|host": 1.03, "h2d|host": 1.1, "d2h|host": 1.1, "host|h2d": 1.05},
    )
    return Profile(hardware=hardware, units=(block,) * (layers + 2), microbatch=4, seq=1024)


def window(layers: int) -> tuple[Schedule, ProfileCosts]:
    profile = made_up_profile(layers)
    layout = Layout(
        method="window 4",
        resident=frozenset({0, layers + 1}),
        slots=4,
        stash=True,
        host_workers=2,
    )
    return build(layout, profile), ProfileCosts(profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--largest", type=int, default=1_000_000, help="most actions simulated")
    largest = parser.parse_args().largest
    heads = ("layers", "steps", "actions", "validate s", "simulate s", "us/action")
    print("".join(f"{head:>12}" for head in heads))
    for layers, steps in SIZES:
        schedule, costs = window(layers)
        count = len(schedule.actions) * steps
        if count > largest * 1.05:
            continue
        gc.collect()
        begin = time.perf_counter()
        validate(schedule)
        proved = time.perf_counter()
        simulate(schedule, costs, steps=steps)
        simulate_s = time.perf_counter() - proved
        row = (layers, steps, count, proved - begin, simulate_s, simulate_s / count * 1e6)
        cells = (f"{cell:>12,}" if isinstance(cell, int) else f"{cell:>12.3f}" for cell in row)
        print("".join(cells), flush=True)


if __name__ == "__main__":
    main()
