"""Write constraints.txt: the exact version of everything in the environment that runs this.

torch is written without its local suffix (+cpu, +cu130), so that one file serves machines with and
without a GPU, and for the same reason what comes along with torch's CUDA build is left out.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Exact versions of the tested environment, written by `make constraints`.
# torch carries no local suffix (+cpu, +cu130): one file serves every machine.
"""
NOT_OURS = re.compile(r"pip|uv|workbench|triton|nvidia-.*|cuda-.*")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Installed distributions, and the extras that are not installed everywhere."""
    found = {canonical(d.name): d.version.split("+")[0] for d in importlib.metadata.distributions()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in extras["megatron"] + extras["plots"] + extras["docs"]:
        name, oldest = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        found.setdefault(canonical(name), oldest)
    return {name: found[name] for name in sorted(found) if not NOT_OURS.fullmatch(name)}


def main() -> None:
    lines = [f"{name}=={version}\n" for name, version in pins().items()]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
