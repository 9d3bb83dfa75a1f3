"""Runs of the benchmarks: methods and cases, which are data, and how long a run is likely to take.

Every run of a case trains the same model on the same samples from the same weights, in the same
precision, with the same clipping, update rule and learning rates. What differs is the method, and
the budget of the device, which those that keep everything on it do not get.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from workbench.core.model_spec import GPT_FAMILY, ModelSpec
from workbench.core.spec import RunSpec
from workbench.published.here import Run
from workbench.runs.overrides import make_spec

GIB = 1 << 30
FOLDER = Path(__file__).resolve().parent
Settings = Mapping[str, Mapping[str, Any]]
"""Name -> fields of a spec."""

PIN = re.compile(r"([wrpk])(\d+)")
PINNED = {"w": "window", "r": "resident", "p": "pulled", "k": "kept"}
WORDS = {"stash": {"activations": "host"}}
"""Settings that a variant pins; the planner chooses the rest."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting and who runs in it."""

    name: str
    methods: Sequence[str]
    """Keys of `Cases.methods`, or these with a variant of pins."""
    changes: Mapping[str, Any]
    """Fields of the spec, of all methods of the case."""
    cap_gib: float | None = None
    """Device memory of those that offload."""
    of_method: Settings = field(default_factory=dict)
    """Further changes by name in the rows."""
    splits: Sequence[int] = ()
    """Numbers of micro-batches to try in turn while the device's memory does not suffice: all peers
    recompute, so the whole batch at once is best where it fits. By default the spec's number."""
    steps: tuple[int, int] | None = None
    """Warm-up and measured steps, where they are not the command line's."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of the benchmark: a method in a case."""

    case: str
    method: str
    """As in the rows, with its variant."""
    spec: RunSpec
    warmup: int
    """First steps that are not measured."""
    splits: tuple[int, ...] = (1,)

    @property
    def name(self) -> str:
        return f"{self.case}/{self.method}"


@dataclass(frozen=True, kw_only=True)
class Cases:
    """Methods of a benchmark, and the cases in which they run."""

    methods: Settings
    """Name in the rows, with a variant in parentheses -> fields of the spec; `splits` are the
    method's own (`Case.splits`)."""
    in_gpu: Sequence[str] = ()
    """Methods whose variants all get the whole device."""
    by_size: Mapping[str, Sequence[Case]]
    """Cases of the published models, and small ones for any machine."""
    settings: Settings = field(default_factory=dict)
    """The values that all cases share, before a case changes some."""

    def entries(
        self, size: str, *, warmup: int, measured: int, only: Iterable[str] = ()
    ) -> list[Entry]:
        """The runs of a size in their order: those that match one of some patterns of a case, a
        method or ``case/method``; all where there are no patterns. Raises ValueError for a pattern
        that matches nothing."""
        cases, patterns = self.by_size[size], list(only)
        found = [
            self.entry(case, name, warmup, measured) for case in cases for name in case.methods
        ]
        for pattern in patterns:
            if not any(matches(entry, pattern) for entry in found):
                names = ", ".join(case.name for case in cases)
                raise ValueError(f"nothing matches {pattern!r}; cases are {names}, and see --list")
        return [e for e in found if not patterns or any(matches(e, p) for p in patterns)]

    def entry(self, case: Case, method: str, warmup: int, measured: int) -> Entry:
        """One run of a case."""
        warmup, measured = case.steps or (warmup, measured)
        changes = {**case.changes, **self.changes_of(method), **case.of_method.get(method, {})}
        splits = changes.pop("splits", case.splits)
        if case.cap_gib is not None and method.partition(" ")[0] not in self.in_gpu:
            changes["device_memory"] = round(case.cap_gib * GIB)
        spec = make_spec({"microbatches": 1}, _of_steps(changes, warmup + measured))
        tried = tuple(splits) or (spec.microbatches,)
        return Entry(case=case.name, method=method, spec=spec, warmup=warmup, splits=tried)

    def changes_of(self, method: str) -> dict[str, Any]:
        """Fields of the spec for a name in the rows; raises ValueError for an unknown one.

        A variant of pins, as in ``stronghold (w4 p8 stash)``, is that many layers in the window
        (w), resident (r), pulled (p) or kept (k), and whether inputs wait on the host.
        """
        base, _, variant = method.partition(" (")
        words = variant.removesuffix(")").split()
        pins = [PIN.fullmatch(word) for word in words if word not in WORDS]
        if method in self.methods:
            return {**self.methods[method]}
        if base not in self.methods or not words or not all(pins):
            known = ", ".join(self.methods)
            raise ValueError(f"unknown method {method!r} of the benchmark; known: {known}")
        changes = {**self.methods[base], **{PINNED[pin[1]]: int(pin[2]) for pin in pins}}
        for word in words:
            changes |= WORDS.get(word, {})
        return changes


def matches(entry: Entry, pattern: str) -> bool:
    """Whether a pattern with ``*`` and ``?`` names the entry's case, its method, or both."""
    return any(fnmatchcase(text, pattern) for text in (entry.case, entry.method, entry.name))


def _of_steps(changes: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Changes with a run's steps, and how many of them the learning rate grows for."""
    return {**changes, "steps": number, "warmup_steps": min(changes["warmup_steps"], number)}


# -- files of cases --------------------------------------------------------------------------------


def load(name: str) -> dict[str, Any]:
    """The contents of a TOML file in the folder of the benchmarks."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


def cases_of(told: Mapping[str, Any], known: Settings | None = None) -> Cases:
    """The cases of a file; its settings may be like those that are `known`.

    A case has the fields of `Case` but for these: names of methods may be those of `groups`, too;
    ``like`` names settings; ``without`` names fields that are None; and of each combination of the
    values in ``each`` there is a case, whose name has them in braces.
    """
    groups, settings = told["groups"], {**(known or {})}
    for key, own in told["settings"].items():
        settings[key] = {**settings.get(own.pop("like", ""), {}), **own}
        if (text := FOLDER / settings[key]["text"]).is_file():
            settings[key]["text"] = str(text)
    return Cases(
        methods=told["methods"],
        in_gpu=groups["in-gpu"],
        by_size={
            size: [case for row in told[size] for case in _cases(row, groups, settings)]
            for size in ("paper", "tiny")
        },
        settings=settings,
    )


def _cases(
    row: dict[str, Any], groups: Mapping[str, list[str]], settings: Settings
) -> Iterator[Case]:
    """The cases of one table of a file."""
    each, like, changes = row.pop("each", {}), row.pop("like"), row.pop("changes", {})
    without = dict.fromkeys(row.pop("without", ()))
    row["methods"] = [name for known in row["methods"] for name in groups.get(known, [known])]
    row["of_method"] = {
        name: more
        for known, more in row.pop("of_method", {}).items()
        for name in groups.get(known, [known])
    }
    for values in product(*each.values()):
        one = dict(zip(each, values, strict=True))
        all_changes = {**settings[like], **changes, **without, **one}
        yield Case(**{**row, "name": row["name"].format(**one), "changes": all_changes})


DATA = load("offload_cases")
OFFLOAD = cases_of(DATA)


def probe(method: str, layers: int, device_cap: int | None, host_cap: int | None) -> Entry:
    """A run of a search for the largest model: three full steps under both budgets."""
    changes = {
        **OFFLOAD.settings["gpt"],
        **OFFLOAD.changes_of(method),
        "layers": layers,
        "batch": 4,
    }
    changes |= DATA["roomiest"].get(changes["method"], {})
    caps = {"device_memory": device_cap, "host_memory": host_cap}
    changes |= {name: cap for name, cap in caps.items() if cap is not None}
    words = [f"{cap / GIB:g}g" if cap else "all" for cap in caps.values()]
    spec = make_spec({"microbatches": 1}, _of_steps(changes, 3))
    return Entry(case=f"largest-{'-'.join(words)}", method=method, spec=spec, warmup=1)


# -- how long a run takes --------------------------------------------------------------------------

COMPUTE_S = 0.0175
"""Per sample of 1024 tokens and 1e9 parameters, with recomputation: 0.30 s for 4 on 4.03e9."""
TINY_S = 15.0
"""A run of the small size, nearly all of it starting."""


def about_parameters(model: ModelSpec) -> int:
    """As many as a GPT of these sizes has, where the family has no formula."""
    return replace(model, family=GPT_FAMILY).parameters


def estimated_seconds(entry: Entry, earlier: Iterable[Run] = ()) -> float:
    """How long a run may take. `earlier` are runs of the sheet: where there are some of the same
    method on this class of model, the longest start among them, scaled, replaces the table's."""
    spec = entry.spec
    if spec.device == "cpu":
        return TINY_S
    billions = about_parameters(spec.model) / 1e9
    base = entry.method.partition(" ")[0]
    start_s, start_s_per_billion, step_s_per_billion = DATA["speeds"][base]
    compute = COMPUTE_S * spec.batch * billions * spec.model.seq / 1024 / spec.ranks
    starts = [
        run.start_seconds * max(1.0, billions / (run.parameters / 1e9))
        for run in earlier
        if run.method == base and run.status == "ok"
    ]
    start_s = max(starts, default=start_s + start_s_per_billion * billions)
    return start_s + (step_s_per_billion * billions + compute) * spec.steps
