"""How DeepSpeed's operators are compiled in half the time that torch takes.

Most of it goes to torch's headers, half a minute for each of an operator's sources, and to debug
information that nobody reads. So nobody writes any, and an operator of many sources has torch's
headers compiled once. ninja builds again what is compiled otherwise: whoever loads an operator asks
for the same (`deepspeed_ops.activate`).
"""

from __future__ import annotations

import functools
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RECIPE = "2"
"""Another one for each change here that changes a compiler's command."""
HOME = "/deepspeed/ops/csrc/"
"""Part of the paths of DeepSpeed's sources, which it names with `extra_cflags`."""
MANY = 4
"""Sources from which on a header of its own pays: it takes as long as two of them."""


def compile_quickly() -> None:
    """Let torch compile DeepSpeed's operators so in this process, and all others as ever."""
    from torch.utils import cpp_extension

    asked = cpp_extension.load
    if hasattr(asked, "__wrapped__"):
        return

    @functools.wraps(asked)
    def load(name: str, sources: Sequence[str], *rest: Any, **how: Any) -> Any:
        if rest or "extra_cflags" not in how or not all(HOME in source for source in sources):
            return asked(name, sources, *rest, **how)
        flags = [*how.pop("extra_cflags"), "-g0"]
        folder = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / name
        if len(sources) < MANY:
            return asked(name, sources, extra_cflags=flags, **how)
        header = folder / "headers.h"
        compiled = header.with_suffix(".h.gch")  # where compilers look for it
        if not (folder / f"{name}.so").exists():
            folder.mkdir(parents=True, exist_ok=True)
            header.write_text("#include <torch/extension.h>\n")
            _precompile(header, compiled, flags)
        try:
            return asked(name, sources, extra_cflags=[*flags, "-include", str(header)], **how)
        finally:
            compiled.unlink(missing_ok=True)  # most of a GiB

    cpp_extension.load = load


def _precompile(header: Path, compiled: Path, flags: Sequence[str]) -> None:
    """Compile a header as torch will compile its sources; a compiler that finds it compiled in
    another way reads the header itself."""
    import torch
    from torch.utils import cpp_extension

    standard = "-std=c++20" if torch.__version__ >= (2, 12) else "-std=c++17"
    folders = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    command = [
        os.environ.get("CXX", "c++"), "-DTORCH_API_INCLUDE_EXTENSION_H",
        *(f"-isystem{folder}" for folder in folders), "-fPIC", standard, *flags,
        "-x", "c++-header", str(header), "-o", str(compiled),
    ]  # fmt: skip
    subprocess.run(command, check=False)
