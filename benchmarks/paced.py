"""Steps of policies whose passes and messages are paced, beside the simulator's with equal draws.

    python -m benchmarks.paced --seeds 3 --scale 1.0

P = 4, D = 1, N = 16; passes of 50, 50 and 100 ms, messages of 5 ms; three settings of jitter. Best
on an idle machine (methods/pipeline/paced.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from statistics import fmean

from workbench.methods.pipeline.paced import Options, paced
from workbench.methods.pipeline.policies import POLICIES, SETTINGS, simulated


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line a step; exit code 0."""
    parser = argparse.ArgumentParser(prog="benchmarks.paced", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of all seconds")
    given, errors = parser.parse_args(argv), []
    print("policy       jitter ms  seed  measured s  simulated s  error")
    for setting in SETTINGS:
        draws = Options(jitter=setting, scale=given.scale).draws(given.seeds)
        steps = product(POLICIES.items(), draws)
        for ((name, policy), jitter), took in zip(steps, paced(draws, given.scale), strict=True):
            wanted = simulated(policy, jitter, given.scale)
            errors.append(took / wanted - 1)
            told = f"{name:12} {setting:9} {jitter.seed:5} {took:11.3f} {wanted:12.3f}"
            print(f"{told} {errors[-1]:+7.1%}", flush=True)
    print(f"mean {fmean(map(abs, errors)):.1%}, worst {max(map(abs, errors)):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
