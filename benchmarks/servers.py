"""Harmony and its peers on several GPUs of one machine: same model, data, seed and precision.

    python -m benchmarks.servers --out results/published-here/h200 --list
    python -m benchmarks.servers --out results/published-here/h200 --only 'xl-4-*'
    python -m benchmarks.servers --out FOLDER --size tiny

As benchmarks/offload.py, whose loop it is: a record a run in FOLDER/servers.jsonl; what runs is
data (server_cases.toml). A case for more GPUs than there are is a row that says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import offload
from benchmarks.offload_cases import OFFLOAD, cases_of, load
from workbench.published.here import SERVERS as ROWS

CASES = cases_of(load("server_cases"), OFFLOAD.settings)
SERVERS = offload.Suite(name="servers", about=__doc__, cases=CASES, form=ROWS, roof="data-parallel")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes as of offload.py."""
    return offload.main(argv, SERVERS)


if __name__ == "__main__":
    sys.exit(main())
