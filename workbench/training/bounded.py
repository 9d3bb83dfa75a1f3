"""How much of a module in a user's own loop is compared with its layers (compare.py), and where.

A comparison costs some two dozen forward passes in fp32 and six copies of all weights: minutes for
a model of a billion parameters. So its cost is counted before, and its first pass is timed. A
module that would take longer than `SECONDS`, or has no room, is compared in part: on fewer samples,
on some of their tokens, with the first layers that show every kind. A GPU is used where the weights
have room under the run's budget.

A part that does not run by itself tells nothing, and the next smaller one is tried. A comparison
is never the reason why a module does not train, unless it finds that the two differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor, nn

from workbench.core.garbage import free_unreachable
from workbench.core.spec import VALUE_BYTES, RunSpec
from workbench.model.objective import Batch, Handed, Layered, Objective
from workbench.training.compare import COPIES, PASSES, SAMPLES, Differs, compare, room_on

SECONDS = 15.0
"""Most that a comparison may take."""
TOKENS = 16
"""Of a row that is shortened."""
IGNORED = -100
"""`ignore_index` of torch's losses."""
FLOPS_PER_S = {"cpu": 1.5e10, "cuda": 1.5e13}
"""fp32 operations a second of one thread of a processor, and of a GPU, at the least."""
MADE_PER_S = {"cpu": 5e8, "cuda": 4e11}
"""Bytes a second that operations of one thread, or of a GPU, put out, at the least."""
WIDE = 8
"""Threads by which memory is busy."""
COPIED_PER_S = {"cpu": 2e9, "cuda": 1e10}
"""Bytes a second of weights that are copied and read."""

Again = Callable[[Sequence[Tensor]], Objective]
"""Makes a user's objective once more, for a first batch of these tensors."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Share of a training that is compared."""

    samples: int
    shortened: bool = False
    """Whether rows have `TOKENS` tokens alone."""
    shallow: bool = False
    """Whether lists of layers have their first entries alone."""


WHOLE = Part(samples=SAMPLES)
PARTS = (
    WHOLE,
    Part(samples=2),
    Part(samples=SAMPLES, shortened=True),
    Part(samples=2, shallow=True),
    Part(samples=SAMPLES, shortened=True, shallow=True),
    Part(samples=2, shortened=True, shallow=True),
)
"""From the largest on."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Result of a comparison."""

    couples: bool
    """Whether samples depend on the others of their micro-batch."""
    note: str
    """How much was compared, or why nothing was; empty where it was the whole module."""


def compare_in_time(
    model: Layered,
    first: Batch,
    again: Again,
    spec: RunSpec,
    device: torch.device,
    *,
    divided: bool,
) -> Compared:
    """Compare the largest part that can be compared in `SECONDS`; batches may be computed
    `divided`, in parts. Raises ValueError, one sentence, where layers would train otherwise than
    the module does, or where the module fails by itself."""
    lists, tokens = _lists(model), _tokens(first)
    why = "that would take too long, or too much memory"
    for part in PARTS:
        if (part.shortened and tokens <= TOKENS) or (part.shallow and not lists):
            continue
        samples, kept = min(part.samples, first.rows), lists if part.shallow else {}
        length = TOKENS if part.shortened else tokens
        share = TOKENS / tokens if part.shortened else 1.0
        for place in _places(model, kept, samples, share, spec, device):
            try:
                small, begin = model, first
                if part.shortened or part.shallow:
                    own = first.tensors[: len(first.places)]
                    objective = again(_shortened(own, tokens, length))
                    small, begin = _of_entries(objective, kept), objective.first
                    if divided:
                        small.divide()
                rows = Handed(begin, small).rows(begin.counting(samples).sort().values.tolist())
                limit = None if part == PARTS[-1] else SECONDS
                couples = bool(compare(small, small, rows, spec.seed, device=place, seconds=limit))
                return Compared(couples=couples, note=_told(part, samples, kept, tokens))
            except Differs:
                raise
            except ValueError as error:
                if part == WHOLE and place == device.type:
                    raise
                why = str(error)
            except Exception as error:  # training itself may do what a comparison cannot
                why = f"{type(error).__name__}: {error}".split("\n")[0]
            finally:
                objective = small = begin = rows = None
                if place == "cuda":
                    free_unreachable()
                    torch.cuda.empty_cache()
    return Compared(couples=False, note=f"not compared with the module as it is written: {why}")


def _of_entries(objective: Objective, kept: Mapping[str, tuple[int, int]]) -> Layered:
    """The layers of an objective whose lists have their first entries alone."""
    for path, (count, _) in kept.items():
        entries = objective.get_submodule(path)._modules
        for name in [*entries][count:]:
            del entries[name]
    return objective.layered()[0]


def _places(
    model: Layered,
    kept: Mapping[str, tuple[int, int]],
    samples: int,
    shortened: float,
    spec: RunSpec,
    device: torch.device,
) -> Iterator[str]:
    """Devices on which a part of the model is compared in time and has room: some samples,
    `shortened` to a part of their length."""
    parameters = flops = made = 0.0
    for unit in range(model.num_units):
        within = (count for path, count in kept.items() if model.path(unit).startswith(f"{path}."))
        count, of = next(within, (1, 1))
        parameters += model.unit_parameters(unit) * count / of
        flops += model.flops(unit, samples, 1) * shortened * count / of
        made += model.made_bytes(unit, samples) * shortened * count / of
    nbytes = COPIES * VALUE_BYTES["fp32"] * parameters
    for place in dict.fromkeys((device.type, "cpu")):
        threads, room = torch.get_num_threads(), psutil.virtual_memory().available
        if place == "cuda":
            threads, room = 1, room_on(device, spec.device_memory)
        seconds = nbytes / COPIED_PER_S[place] + PASSES * (
            flops / (FLOPS_PER_S[place] * threads) + made / (MADE_PER_S[place] * min(threads, WIDE))
        )
        if seconds <= SECONDS and nbytes <= room:
            yield place


def _lists(model: Layered) -> dict[str, tuple[int, int]]:
    """Paths of lists of layers -> (how many of its first entries show every kind, entries), of
    lists that have more. The last entry may be of a kind of its own, since nothing of it is handed
    on; the last of fewer takes its place."""
    kinds: dict[str, list[str]] = {}
    for unit in range(model.num_units):
        kinds.setdefault(model.path(unit), []).append(model.kind(unit))
    found = {}
    for path, part in model.modules_by_path():
        if not isinstance(part, nn.ModuleList) or not path:
            continue
        of = [_kinds_at(f"{path}.{name}", kinds) for name in part._modules]
        count = 1 + max((of.index(kind) + 1 for kind in {*of[:-1]}), default=1)
        if count < len(of) and all(of):
            found[path] = count, len(of)
    return found


def _kinds_at(path: str, kinds: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Kinds of the units in the module at a path."""
    within = (of for begin, of in kinds.items() if f"{begin}.".startswith(f"{path}."))
    return tuple(kind for of in within for kind in of)


def _tokens(first: Batch) -> int:
    """Length of the rows of ids or labels that a batch has; 0 where it has none."""
    whole = (t for t in first.tensors if t.dim() > 1 and not t.is_floating_point())
    return next((t.shape[1] for t in whole), 0)


def _shortened(tensors: Sequence[Tensor], tokens: int, length: int) -> list[Tensor]:
    """Tensors of which every dimension of `tokens` is `length` long: a window in which each row has
    labels that count, if there is one."""

    def labels(start: int) -> int:
        """Fewest in a row, of any tensor."""
        windows = (t[:, start : start + length] for t in tensors if _is_row(t, tokens))
        return min((int((w != IGNORED).sum(1).min()) for w in windows), default=0)

    start = max(range(0, tokens - length + 1, length), key=labels) if length < tokens else 0
    found = []
    for tensor in tensors:
        for dim in range(1, tensor.dim()):
            if tensor.shape[dim] == tokens:
                tensor = tensor.narrow(dim, start, length)
        found.append(tensor.contiguous())
    return found


def _is_row(tensor: Tensor, tokens: int) -> bool:
    return tensor.dim() == 2 and tensor.shape[1] == tokens and not tensor.is_floating_point()


def _told(part: Part, samples: int, kept: Mapping[str, tuple[int, int]], tokens: int) -> str:
    """How much was compared."""
    if part == WHOLE:
        return ""
    told = [f"{count} of {of} layers" for count, of in kept.values()]
    told += [f"{TOKENS} of {tokens} tokens a row"] * part.shortened
    return f"compared with the module as it is written on {', '.join([*told, f'{samples} rows'])}"
