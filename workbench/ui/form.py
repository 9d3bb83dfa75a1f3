"""A sweep as a form: what people type in each field becomes a sweep file, and back.

The fields are those of `RunSpec`, of its model and of all methods' options, with their types,
defaults and docstrings: one that is added there is in the form. What a form cannot say (several
``runs``, an axis of whole models) is kept as it stands in the file and goes back into it.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workbench.core.fields import Field, fields_of
from workbench.core.methods import find
from workbench.core.paths import user_path
from workbench.core.spec import RunSpec, every_field, field_of
from workbench.runs.axis import format_axis, parse_axis
from workbench.runs.campaign import Campaign
from workbench.runs.overrides import USUAL, WHOLE
from workbench.runs.sweep import VERSION, SweepFile, Written

GROUPS = {
    "Basic": (
        "method", "layers", "hidden", "heads", "seq", "vocab", "batch", "microbatches", "steps",
        "device", "dtype", "device_memory", "host_memory",
    ),
    "Sweep": ("name", "timeout", "executor"),
    "Data": (
        "text", "tokenizer", "rows", "train_on", "cut_rows", "augment", "seed", "dropout",
    ),
    "Held-out loss": ("eval_text", "eval_every", "eval_samples", "eval_share", "eval_epochs"),
    "Weights and checkpoints": ("weights", "start_from", "save_every"),
    "Placement": (
        "ranks", "activations", "attention", "disk_memory", "link_bytes_per_s", "compile",
        "replay",
    ),
    "Optimizer": (
        "clip", "lr", "min_lr", "lr_schedule", "warmup_steps", "lr_decay_steps", "weight_decay",
        "beta1", "beta2", "eps",
    ),
}  # fmt: skip
"""Where a page shows which field; one that is in no group is the model's, or some methods' own."""
OF_METHODS = "Options of the chosen methods"
REST = "Model"
OF_SWEEP = {
    "name": "Name of the sweep, and of its folder. Letters, digits, dots, underscores, hyphens.",
    "timeout": "Longest time of one run, in seconds; empty for no limit.",
    "executor": "Who runs: local (this machine), ray, or ray:ADDRESS.",
}
"""Fields of the file itself, which take one value."""
MOST_RUNS = 10_000
"""In a sweep that a form makes."""


@dataclass(frozen=True, kw_only=True)
class FormField:
    """One field as a page shows it."""

    name: str
    group: str
    help: str
    default: str = ""
    """As one would type it; empty where there is none."""
    choices: tuple[str, ...] = ()
    """Words that it takes, to be offered."""
    methods: tuple[str, ...] = ()
    """Names of the methods that have it; empty where all have."""


def form_fields() -> dict[str, FormField]:
    """All fields by name, those of a group together."""
    return _form_fields(tuple(every_field().values()))


@cache
def _form_fields(every: tuple[Field, ...]) -> dict[str, FormField]:
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    for field in every:
        if field.methods:
            group_of[field.name] = OF_METHODS
    found = [FormField(name=name, group="Sweep", help=words) for name, words in OF_SWEEP.items()]
    for field in every:
        usual = USUAL.get(field.name, field.default)
        default = "" if usual is MISSING else field.format(usual)
        about = [field.about, f"It takes {field.takes}.", f"Default: {default or 'empty'}."]
        if field.methods:
            about.append(f"Only for {', '.join(find(name).label for name in field.methods)}.")
        found.append(
            FormField(
                name=field.name,
                group=group_of.get(field.name, REST),
                help=" ".join(filter(None, about)),
                default=default,
                choices=field.choices,
                methods=field.methods,
            )
        )
    groups = [*GROUPS, REST, OF_METHODS]
    order = {name: place for place, name in enumerate(group_of)}
    found.sort(key=lambda f: (groups.index(f.group), order.get(f.name, len(order))))
    return {field.name: field for field in found}


class Form:
    """The fields of one sweep, as text. Empty ones have their default."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        """Field -> one sentence, for what was typed and cannot be used."""
        self._texts: dict[str, str] = {}
        self._axes: set[str] = set()
        """Fields that a file had as axes, also of one value: they win over its ``runs``."""
        self._runs: list[dict[str, Any]] = [{}]
        self._kept: dict[str, list[Any]] = {}
        """Axes that are not one field's."""
        self._loaded: tuple[dict[str, str], dict[str, Any]] | None = None
        """A file and the texts it was turned into."""

    def set(self, **values: Any) -> None:
        """Fill fields, with values, lists of values, or text as people type it; None empties one
        that has no other use for it.

        All of it or nothing: raises ValueError for an unknown field or a bad value.
        """
        texts = {name: _as_text(name, value) for name, value in values.items()}
        for name, text in texts.items():
            if text:
                self._values(name, text)
        for name, text in texts.items():
            self.type(name, text)

    def type(self, name: str, text: str) -> str:
        """Take what was typed; returns what is wrong with it, else nothing. Raises ValueError for
        an unknown field."""
        _known(name)
        text = text.strip()
        self._texts.pop(name, None)
        self.errors.pop(name, None)
        if text:
            self._texts[name] = text
            try:
                self._values(name, text)
            except ValueError as error:
                self.errors[name] = str(error)
        return self.errors.get(name, "")

    def text(self, name: str) -> str:
        """Text in the field."""
        return self._texts.get(_known(name), "")

    def shows(self, field: FormField) -> bool:
        """Whether people want to see it: a chosen method has it, or it has a text."""
        if not field.methods or self.text(field.name):
            return True
        text = "" if "method" in self.errors else self.text("method")
        chosen = parse_axis("method", text) if text else []
        chosen += [run["method"] for run in self._runs if "method" in run]
        return not {*chosen}.isdisjoint(field.methods)

    @property
    def kept(self) -> str:
        """Parts of the file that no field shows, in words; empty where there are none."""
        parts = []
        if self._runs != [{}]:
            parts.append(f"{len(self._runs)} runs ({', '.join(map(_in_words, self._runs[:4]))}")
            parts[-1] += ", ...)" if len(self._runs) > 4 else ")"
        parts += [f"{len(values)} values of {name}" for name, values in self._kept.items()]
        return f"kept as in the file: {'; '.join(parts)}" if parts else ""

    @property
    def untouched(self) -> bool:
        """Whether it stands as it was loaded."""
        return self._loaded is not None and self._loaded[0] == self._texts

    def count(self) -> int:
        """How many runs it is, equal ones counted apart. Raises ValueError as `data` does."""
        data = self.data()
        lengths = [len(values) for values in data.get("grid", {}).values()]
        return math.prod(lengths) * len(data.get("runs", [{}]))

    def data(self) -> dict[str, Any]:
        """The sweep file. Raises ValueError for the first field that cannot be used."""
        for sentence in self.errors.values():
            raise ValueError(sentence)
        if self._loaded is not None and self.untouched:
            return dict(self._loaded[1])
        found: dict[str, Any] = {"base": {}, "grid": dict(self._kept)}
        for name, text in self._texts.items():
            values = self._values(name, text)
            if name in OF_SWEEP:
                found[name] = values[0]
            elif len(values) > 1 or name in self._axes:
                found["grid"][name] = values
            else:
                found["base"][name] = values[0]
        if self._runs != [{}]:
            found["runs"] = self._runs
        asked = {*found["base"], *found["grid"]}
        if "method" not in asked and not all("method" in run for run in self._runs):
            raise ValueError("no method is chosen; choose at least one")
        found["version"] = VERSION
        return {name: found[name] for name in ("name", *found) if found.get(name)}

    def specs(self) -> list[RunSpec]:
        """Its runs. Raises ValueError for a bad field, a combination that no run can be, or more
        than `MOST_RUNS`."""
        if (count := self.count()) > MOST_RUNS:
            raise ValueError(f"the sweep has {count:,} runs; at most {MOST_RUNS:,} are allowed")
        return SweepFile.parse(self.data(), "this sweep").specs

    def load(self, source: dict[str, Any] | str | Path | Campaign) -> None:
        """Fill the form from a sweep: its data, its file, or a sweep of a store.

        Raises ValueError for one that is malformed, and leaves the form as it was.
        """
        if isinstance(source, str | Path):
            source = SweepFile.load(user_path(source)).data
        elif isinstance(source, Campaign):
            source = source.data
        made = _from_data(source)
        self.__dict__.update(made.__dict__)

    def clear(self) -> None:
        """An empty form."""
        self.__dict__.update(Form().__dict__)

    def _values(self, name: str, text: str) -> list[Any]:
        """Values of a field's text; raises ValueError."""
        if name not in OF_SWEEP:
            return parse_axis(_known(name), text)
        value = fields_of(Written)[name].parse(text) if name == "timeout" else text
        Written(**{name: value})  # refuses one that no sweep can have
        return [value]


def _from_data(data: dict[str, Any]) -> Form:
    """A form that holds a sweep file. Raises ValueError."""
    SweepFile.parse(data, "this sweep")
    form = Form()
    values = {name: [value] for name, value in _flat(data.get("base", {})).items()}
    for name, axis in data.get("grid", {}).items():
        if name in WHOLE:
            form._kept[name] = axis
        else:
            values[name.removeprefix("model.")] = axis
            form._axes.add(name.removeprefix("model."))
    form._runs = [dict(run) for run in data.get("runs", [{}])]
    for name, axis in values.items():
        form._texts[name] = format_axis(name, [field_of(name).check(value) for value in axis])
    for name in OF_SWEEP:
        if data.get(name) is not None:
            form._texts[name] = str(data[name])
    for name, text in list(form._texts.items()):
        form.type(name, text)
    form._loaded = dict(form._texts), data
    return form


def _flat(base: dict[str, Any]) -> dict[str, Any]:
    """Fields of the model and options beside the others."""
    flat: dict[str, Any] = {}
    for name, value in base.items():
        flat |= value if name in WHOLE else {name.removeprefix("model."): value}
    return flat


def _as_text(name: str, value: Any) -> str:
    _known(name)
    if isinstance(value, str):
        return value
    if value is None and (name in OF_SWEEP or type(None) not in field_of(name).kinds):
        return ""
    if name in OF_SWEEP:
        return str(value)
    return format_axis(name, [*value] if isinstance(value, list | tuple | range) else [value])


def _known(name: str) -> str:
    if name not in form_fields():
        known = ", ".join(sorted(form_fields()))
        raise ValueError(f"unknown field {name!r} in a sweep; known: {known}")
    return name


def _in_words(run: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in run.items()) or "unchanged"
