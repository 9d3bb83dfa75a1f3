"""A user's own module, or a decoder of Hugging Face, compared with its layers once and remembered
(compare.py).

Files lie in RESULTS/compared, named after all that decides the answer: the model's numbers, the
files that the module is made by, versions of libraries, the samples' shapes and this project's own
code. Of a decoder the first layers are compared, as many as show every kind, on some tokens.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from workbench.core import methods, sources
from workbench.core.bytesize import format_bytes
from workbench.core.garbage import free_unreachable
from workbench.core.model_spec import ModelSpec
from workbench.core.reporter import Reporter
from workbench.core.sealed import read_sealed
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.base import LayeredModel
from workbench.model.custom import imports_digest
from workbench.model.families import blank_rows
from workbench.model.hf_config import transformers_package
from workbench.model.modules import Decomposed
from workbench.profile.files import write
from workbench.training.compare import COPIES, PASSES, SAMPLES, NoNumber, Rows, compare, room_on
from workbench.training.run import load_batches, resolve_device

TOKENS = 16
"""A decoder is compared on samples of so many at most."""
RATE = 3e10
"""Operations a second of a processor."""
SOON_S = 5
"""A comparison that takes longer is announced."""
WORDS = 200
"""Letters that are told of an error."""
ROOT = Path(__file__).resolve().parents[2]


def ensure(spec: RunSpec, results: Path, report: Reporter) -> None:
    """Compare what a run trains on its first samples, unless that was done. Raises ValueError as
    `compare` does, and where samples are others when they are read twice."""
    if spec.model.ours:
        return
    model = make_model(spec.model.anywhere, spec.seed)  # also where a processor compares
    wanted = range(min(SAMPLES, spec.batch))
    rows = _rows(spec, model, wanted) if spec.model.custom else made_up_rows(spec.model)
    path = results / "compared" / f"{_digest(spec, rows)}.json"
    notes = _known(path)
    if notes is None:
        report.phase(f"comparing the layers with the module as it is written{_time(model, rows)}")
        gpu = resolve_device(spec.device)
        room = room_on(gpu, spec.device_memory) if gpu.type == "cuda" else 0
        try:
            notes = notes_of(spec.model, model, rows, spec.seed, gpu_room=room)
        finally:
            free_unreachable()
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, {"family": spec.model.family, "notes": notes})
    for note in notes:
        report.phase(f"{spec.model.family}: {note}")


def notes_of(
    spec: ModelSpec, model: LayeredModel, rows: Rows, seed: int, *, gpu_room: int = 0
) -> list[str]:
    """The notes of `compare`, or why the module is not compared. A decoder of Hugging Face's is
    compared on a GPU that has room for so many bytes; if that fails there, the processor decides.
    """
    told: list[str] = []
    if not spec.custom and (short := model.shortened()) is not model:
        words = f", with {short.vocab:,} of its words" if short.vocab < model.vocab else ""
        told = [f"compared on its first {short.layers} layers, which show every kind{words}"]
        model = short
    if lacking := lacks_memory(model):
        return [f"not compared with the module as it is written: that {lacking}"]
    again = make_model(spec, seed) if spec.custom else model
    if not spec.custom and _nbytes(model) <= gpu_room:
        try:
            return told + compare(model, again, rows, seed, device="cuda", there=not spec.custom)
        except Exception as error:  # whatever libraries raise, and a difference
            why = " ".join(str(error).split())[:WORDS] or type(error).__name__
            told.append(f"compared on the processor, since that failed on the GPU: {why}")
        finally:
            free_unreachable()
            torch.cuda.empty_cache()
    try:
        return told + compare(model, again, rows, seed)
    except NoNumber as error:
        return [f"not compared with the module as it is written: {error}"]


def lacks_memory(model: LayeredModel) -> str:
    """End of a sentence that says how much memory a comparison takes and how much is free; empty
    where there is enough."""
    wanted, free = _nbytes(model), psutil.virtual_memory().available
    if wanted <= free:
        return ""
    return f"takes {format_bytes(wanted)} of memory, and {format_bytes(free)} are free"


def _nbytes(model: LayeredModel) -> int:
    return COPIES * 4 * model.parameters_count()


def _time(model: LayeredModel, rows: Rows) -> str:
    """How long a user's own module takes, where that is long."""
    units, seq = range(model.num_units), rows[0].shape[-1]
    seconds = PASSES * sum(model.flops(unit, len(rows[-1]), seq) for unit in units) / RATE
    long = isinstance(model, Decomposed) and seconds > SOON_S
    return f" (once, some {seconds:.0f} s)" if long else ""


def _rows(spec: RunSpec, model: LayeredModel, wanted: Sequence[int]) -> Rows:
    """Samples of the run's data, read twice."""
    batches = load_batches(spec, model)
    rows = batches.rows(wanted)
    if not all(map(torch.equal, rows, batches.rows(wanted))):
        raise ValueError(
            f"samples of {batches.data.name} are others when they are read again: draw in "
            "__getitem__ from the generators of torch, numpy or Python, which are seeded for each "
            "sample, and keep nothing there"
        )
    return rows


def made_up_rows(spec: ModelSpec, most: int = TOKENS) -> Rows:
    """Samples of the right shapes for a model whose data nobody asks for, of `most` tokens: noise,
    and whole numbers that are ids and labels everywhere."""
    generator = torch.Generator().manual_seed(0)
    short = spec if spec.custom else replace(spec, seq=min(most, spec.seq))
    return tuple(
        torch.randn(row.shape, generator=generator)
        if row.is_floating_point()
        else torch.randint(2, row.shape, generator=generator).to(row.dtype)
        for row in blank_rows(short, SAMPLES)
    )


def own_code() -> str:
    """Digest of this project's code that compares; a second call is quick."""

    def ours(name: str, _: Path) -> bool:
        return name.partition(".")[0] == "workbench" and name != methods.__name__  # it names all

    return sources.imports_digest(__name__, (ROOT, *sys.path), ours)


def _digest(spec: RunSpec, rows: Rows) -> str:
    custom = spec.model.custom
    facts: list[Any] = [
        replace(spec.model, pretrained="").to_dict() | sources.by_content(spec.model),
        spec.seed,
        imports_digest(spec.model.family) if custom else transformers_package().__version__,
        torch.__version__,
        [(tuple(row.shape), str(row.dtype)) for row in rows],
        own_code(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _known(path: Path) -> list[str] | None:
    """The notes in a file; None where there is none that can be read."""
    try:
        notes = read_sealed(path, path.name)["notes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = isinstance(notes, list) and all(isinstance(note, str) for note in notes)
    return notes if whole else None
