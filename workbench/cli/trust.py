"""``workbench trust``: gives checkpoints the checksums that a run asks for.

Runs refuse a checkpoint whose manifest has no valid checksum: an older version wrote it, or it was
changed since. A user who knows that it is sound says so here, once. The visible is checked: the
manifest has every field and no other, its counts agree, and all files have the sizes and the
checksums that it knows. All checkpoints are looked at before the first manifest is written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.core.jsonfile import read_object
from workbench.core.schema import read_as
from workbench.runtime.checkpoint.manifest import MANIFEST, Manifest, steps_in, sums


def trust(folder: Path) -> list[Path]:
    """Seal a checkpoint, or all of a run's by the folder of the run or of its checkpoints; returns
    them. Raises ValueError where one is not to be trusted."""
    paths = [folder] if (folder / MANIFEST).exists() else [*steps_in(folder)]
    paths = paths or [*steps_in(folder / "checkpoints")]
    if not paths:
        raise ValueError(f"there is no checkpoint in {folder}")
    manifests = {path: _read(path) for path in paths}
    for path, manifest in manifests.items():
        manifest.write(path)
    return paths


def _read(path: Path) -> Manifest:
    where = f"the manifest of {path}"
    data = read_object(path / MANIFEST, where)
    data.pop("sha256", None)
    if "continues" not in data:  # DeepSpeed's and megatron-core's of older versions
        raise ValueError(
            f"{where} does not say which training it is of, so no run can go on from it; remove "
            f"{path.parent} to begin anew"
        )
    lacking = "version" not in data and "crc32" not in data
    if "version" not in data:  # before it had one, losses and norms were texts
        sizes = read_as(dict[str, int], data.get("files"), f"{where}: files")
        known = read_as(dict[str, int], data.pop("crc32", dict.fromkeys(sizes, 0)), where)
        if sizes.keys() != known.keys():
            raise ValueError(f"{where}: files and crc32 do not name the same files")
        data["files"] = {name: (size, known[name]) for name, size in sizes.items()}
        for name in ("losses", "grad_norms"):
            if isinstance(data.get(name), list):
                data[name] = [_number(each) for each in data[name]]
    manifest = read_as(Manifest, data, where)
    found = sums(path, manifest.files)
    for name, (size, crc32) in manifest.files.items():
        if found[name] != (size, found[name][1] if lacking else crc32):
            raise ValueError(f"{path / name} is not the file that the manifest is of; not trusted")
    return replace(manifest, files=found)


def _number(text: Any) -> Any:
    """The number of a text; the schema refuses any other."""
    try:
        return None if text == "None" else float(text)
    except (TypeError, ValueError):
        return text
