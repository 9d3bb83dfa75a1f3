"""Makes a folder of random weights in bf16 of any configuration, as if somebody had trained it.

    python -m benchmarks.folder CONFIG OUT [--seed N] [--alike]

CONFIG is a `config.json` of Hugging Face's, or a folder with one; OUT is a new folder. Files have
at most 5 GB. Two layers are in memory at a time. With --alike equal layers are drawn once: numbers
take longer than the disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from workbench.core.bytesize import format_bytes
from workbench.runs.progress import Progress


def main(words: Sequence[str] | None = None) -> int:
    """Exit code: 2 for a configuration or a folder that cannot be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.folder", description=__doc__)
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alike", action="store_true", help="equal numbers in equal layers")
    arguments = parser.parse_args(words)
    from workbench.model.weights.drawn import write_random  # imports torch

    progress = Progress(sys.stderr)

    def tell(done: int, whole: int) -> None:
        progress.passing(f"writing: {format_bytes(done)} of {format_bytes(whole)}")

    try:
        how = {"seed": arguments.seed, "alike": arguments.alike, "tell": tell}
        made = write_random(arguments.config, arguments.out, **how)
    except (ValueError, OSError) as error:
        print(f"folder: {error}", file=sys.stderr)
        return 2
    finally:
        progress.end()
    files = f"{made.files} file{'s' * (made.files != 1)}"
    print(f"made: {made.parameters:,} random parameters in {arguments.out} ({files}, bf16)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
