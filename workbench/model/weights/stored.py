"""Files of weights that a path stands for: which they are, their tensors, and their digest.

A path is a folder as transformers writes it (one file, or several with an index), a file, a run of
ours, whose newest checkpoint counts, or a checkpoint. Checkpoints hold fp32 masters under the names
of the whole model's `state_dict`, whichever method wrote them; their moments are left where they
are. Faults are told from headers alone, each in a sentence with its file. Imports no torch.

The digest is over headers, sizes, and a block of 4 KiB of every 2 MiB of each file, so it takes a
second for 16 GB: weights that were trained further differ nearly everywhere. It is no proof against
somebody who changes a few bytes on purpose, nor against a flipped bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from workbench.core.files import open_file
from workbench.core.jsonfile import read_object
from workbench.core.paths import user_path
from workbench.model.weights.headers import WORDS, Entry, read_header

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ENDING = ".safetensors"
UNIT, STEP = re.compile(r"unit-\d+\.safetensors"), re.compile(r"step-\d+")
"""Files of a checkpoint that hold a unit's tensors, and names of checkpoints."""
STATISTICS = "statistics.safetensors"
"""The file of a checkpoint with running statistics."""
WEIGHT = "weight/"
"""Begins the name of a weight in a checkpoint; its optimizer states have other words there."""
ENGINES = "module."
"""Begins the names of an engine in a user's loop."""
OTHERS = re.compile(
    r"(?i)(.*\.(gguf|ggml|h5|msgpack|ckpt)|(pytorch_model|model|weights|consolidated|"
    r"adapter_model).*\.(bin|pt|pth|npz|onnx))(\.index\.json)?"
)
"""Names of files that hold weights in other forms, pickles mostly, or list these."""
UNPICKLED = (".gguf", ".ggml", ".h5", ".msgpack", ".npz", ".onnx")
"""Endings of files in other forms that are no pickles."""
BLOCK, EVERY = 4 << 10, 2 << 20
"""Bytes that a digest takes, and of how many."""


@dataclass(frozen=True)
class Stored:
    """Tensors of a path, which lie in files."""

    path: Path
    files: tuple[Path, ...]
    entries: dict[str, Entry]
    """By their names in the model that wrote them."""

    @property
    def numel(self) -> int:
        """Elements of all tensors."""
        return sum(entry.numel for entry in self.entries.values())

    @property
    def dtypes(self) -> str:
        """Types of the tensors in words, such as ``bf16``."""
        return " and ".join(sorted({WORDS.get(e.dtype, e.dtype) for e in self.entries.values()}))

    @property
    def told(self) -> str:
        """Path, number of files, and types, in words."""
        count = f"{len(self.files)} file{'s' if len(self.files) > 1 else ''}"
        return f"{self.path} ({count}, {self.dtypes})"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of headers, sizes and samples of the files, whatever their names are."""
        each = sorted(map(_digest, self.files))
        return sha256("\n".join(each).encode()).hexdigest()


def find(path: str | Path) -> Stored:
    """The weights of a path. Raises ValueError, one sentence with the file, where there are none
    that can be read, and for quantized ones."""
    place = user_path(path)
    if not place.exists():
        raise ValueError(f"there are no weights at {str(path)!r}: no such file or folder")
    if place.is_dir():
        files, checkpoint = _files_in(place)
        if not files:
            raise ValueError(_lacking(place))
    elif place.suffix == ".json" and not OTHERS.fullmatch(place.name):
        raise ValueError(f"{place} holds no weights; name its folder, or a file *{ENDING}")
    elif place.suffix not in ("", ENDING):  # files in a cache have none
        raise ValueError(_unread(place))
    else:
        files, checkpoint = [place], UNIT.fullmatch(place.name) is not None
    config = place / "config.json"
    if config.is_file() and (how := read_object(config, str(config)).get("quantization_config")):
        told = how.get("quant_method") if isinstance(how, dict) else how
        raise ValueError(
            f"{config} is of quantized weights ({told}); save the model in fp32, bf16 or fp16"
        )
    entries: dict[str, Entry] = {}
    for file in files:
        for label, entry in read_header(file).items():
            if checkpoint and not label.startswith(WEIGHT) and file.name != STATISTICS:
                continue
            name = label.removeprefix(WEIGHT).removeprefix(ENGINES) if checkpoint else label
            if name in entries:
                raise ValueError(
                    f"{label!r} is in {entries[name].file} and in {file}; name the weights' file"
                )
            entries[name] = entry
    indexed = not checkpoint and place / SINGLE not in files and (place / INDEX).exists()
    if indexed and (lacking := _index(place / INDEX).keys() - entries.keys()):
        raise ValueError(f"{place / INDEX} names tensors that its files lack: {few(lacking)}")
    for entry in entries.values():
        mask = entry.dtype == "U8" and entry.shape[:2] == (1, 1)  # of attention, in older folders
        if entry.dtype not in (*WORDS, "I64", "BOOL") and not mask:
            raise ValueError(
                f"{entry.file} holds quantized weights: {entry.label!r} is {entry.dtype}; save the "
                "model in fp32, bf16 or fp16"
            )
    if not entries:
        raise ValueError(f"{files[0]} holds no weights")
    return Stored(place, tuple(files), entries)


def digest_of(path: str) -> str:
    """The digest of a path's weights. Raises ValueError as `find`."""
    return find(path).digest


def beside(config: str | Path) -> Path | None:
    """The folder of a configuration, or of the file that it links to, if weights lie there: also
    such as `find` refuses."""
    place = user_path(config)
    folders = [place] if place.is_dir() else [place.parent, place.resolve().parent]
    for folder in dict.fromkeys(folders):
        if _files_in(folder, lenient=True)[0] or others_in(folder):
            return folder
    return None


def others_in(folder: Path) -> Path | None:
    """A file of a folder that holds weights in another form."""
    found = (path for path in sorted(folder.iterdir()) if OTHERS.fullmatch(path.name))
    return next(found, None)


def few(names: Iterable[str]) -> str:
    """Three of the names, and the count of all."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(map(repr, ordered[:3])) + more


def _files_in(folder: Path, *, lenient: bool = False) -> tuple[list[Path], bool]:
    """Files of weights in a folder, and whether they are a checkpoint's."""
    for saved in (folder, *_steps_in(folder)):
        if units := sorted(path for path in saved.iterdir() if UNIT.fullmatch(path.name)):
            statistics = saved / STATISTICS
            return [*units, *([statistics] if statistics.exists() else [])], True
    if (folder / SINGLE).is_symlink() or (folder / SINGLE).exists():
        return [folder / SINGLE], False
    if (folder / INDEX).exists():
        return ([folder / INDEX] if lenient else _listed(folder / INDEX)), False
    return sorted(folder.glob(f"*{ENDING}")), False


def _steps_in(folder: Path) -> list[Path]:
    """Checkpoints of a run, newest first."""
    steps = [path for where in (folder, folder / "checkpoints") for path in where.glob("step-*")]
    named = (path for path in steps if STEP.fullmatch(path.name) and path.is_dir())
    return sorted(named, key=lambda path: path.name, reverse=True)


def _index(index: Path) -> dict[str, str]:
    """An index: name of a tensor -> name of its file."""
    weight_map = read_object(index, str(index)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} is no index of weights: it has no weight_map")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(ENDING):
            raise ValueError(
                f"{index} names {name!r}; it must name files *{ENDING} of its own folder"
            )
    return weight_map


def _listed(index: Path) -> list[Path]:
    """Files that an index names."""
    names = {*_index(index).values()}
    for name in sorted(names):
        if not (index.parent / name).is_file():
            raise ValueError(f"{index} names {name!r}, and there is no such file in its folder")
    return [index.parent / name for name in sorted(names)]


def _lacking(folder: Path) -> str:
    if other := others_in(folder):
        return _unread(other)
    if saved := _steps_in(folder):
        return (
            f"{saved[0]} is a checkpoint of its engine's own form; workbench export writes its "
            "weights into a folder, to be named instead"
        )
    return (
        f"there are no weights in {folder}: it has no files *{ENDING}, and is no run or checkpoint"
    )


def _unread(file: Path) -> str:
    pickle = (
        ""
        if file.suffix.lower() in UNPICKLED
        else ", and a pickle could run anything when it is read"
    )
    return (
        f"{file} is none of safetensors{pickle}: where you trust it, write the model with "
        "transformers' from_pretrained and save_pretrained, or begin with --weights random"
    )


def _digest(file: Path) -> str:
    digest = sha256()
    with open_file(file, str(file)) as opened:
        size = opened.seek(0, 2)
        opened.seek(0)
        length = int.from_bytes(opened.read(8), "little")
        digest.update(f"{size} {length} ".encode() + opened.read(length))
        for at in range(8 + length, size, EVERY):
            opened.seek(at)
            digest.update(opened.read(BLOCK))
        opened.seek(max(8 + length, size - BLOCK))
        digest.update(opened.read(BLOCK))
    return digest.hexdigest()
