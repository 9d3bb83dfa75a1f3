"""Changes a spec by field name, from text or JSON, and says a spec as words of a command line.

The command line's ``--set``, sweep files and widgets all come through here; core/fields.py checks
each value. Options of methods and fields of the model go by their own names (``layers``), these
also dotted (``model.layers``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.core.fields import fields_of
from workbench.core.files import read_whole
from workbench.core.model_spec import ModelSpec
from workbench.core.options import catalogue, options_of
from workbench.core.paths import user_path
from workbench.core.sealed import parse_sealed
from workbench.core.spec import RunSpec, field_of, flat
from workbench.model.named import NAMED

MODEL = fields_of(ModelSpec).keys()
WHOLE = {"model": "a model", "options": "options"}
"""Parts of a spec's JSON form whose fields people write beside the others."""
FLAGS = {
    "model": ("layers", "hidden", "heads", "seq", "vocab", "dropout", "attention"),
    "data": (
        "text", "tokenizer", "rows", "train_on", "cut_rows", "augment", "batch", "microbatches",
        "steps", "seed", "weights",
    ),
    "device": ("device", "ranks", "dtype", "compile", "replay", "activations"),
    "memory": ("device_memory", "host_memory", "disk_memory"),
    "optimizer": ("lr", "min_lr", "lr_schedule", "warmup_steps", "weight_decay", "clip"),
    "checkpoints": ("save_every", "start_from"),
    "evaluation": ("eval_every", "eval_epochs", "eval_share", "eval_samples", "eval_text"),
}  # fmt: skip
"""Group in ``--help`` -> fields of all methods that have a flag. All options have one."""
FIELDS = tuple(name for names in FLAGS.values() for name in names)


def make_spec(
    data: Mapping[str, Any], *changes: Mapping[str, Any], lenient: bool = False
) -> RunSpec:
    """A spec from its JSON form, with each of `changes` (name -> value) laid over it in turn.

    Raises ValueError for an unknown field, a value of the wrong type, or what `RunSpec` refuses;
    options that the method does not have are left out where `lenient`.
    """
    merged: dict[str, Any] = {"model": {}}
    for source in (data, *changes):
        if not isinstance(source, Mapping):
            raise ValueError(f"a run spec is a JSON object, this is a {type(source).__name__}")
        named(source)
        merged["model"] |= _sizes(source)
        for name, value in source.items():
            if name not in WHOLE:
                _put(merged, name, value)
                continue
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} is {value!r}; it must be a JSON object")
            for part, inner in value.items():
                _put(merged, part, inner, inside=name)
    if isinstance(method := merged.get("method"), str):
        told = options_of(method).fields_of_files(merged)
        merged = {**told, **merged, "model": told.get("model", {}) | merged["model"]}
    return _meant(RunSpec.from_dict(merged, lenient=lenient))


def named(source: Mapping[str, Any]) -> dict[str, str]:
    """Fields that a spec's JSON names, by their own names, and as they are written there. Raises
    ValueError for one that it names twice, since one of the two values would not count."""
    found: dict[str, str] = {}
    for name, value in source.items():
        whole = name in WHOLE and isinstance(value, Mapping)
        for part, written in [(p, f"{p} in {name}") for p in value] if whole else [(name, name)]:
            if (before := found.setdefault(_plain(part), written)) != written:
                raise twice(_plain(part), before, written)
    return found


def twice(name: str, first: str, second: str) -> ValueError:
    """The error of a field that has a value in two places."""
    return ValueError(
        f"{name} is given twice, as {first} and as {second}, and one of them would not count; "
        "leave one out"
    )


def _meant(spec: RunSpec) -> RunSpec:
    """The spec. Raises ValueError for learning rates that nobody means; records may have them."""
    of = "steps" if spec.lr_decay_steps is None else "lr_decay_steps"
    if (end := getattr(spec, of)) < 1:
        raise ValueError(f"{of} is {end}; it must be at least 1, or none")
    if spec.warmup_steps > end:
        raise ValueError(f"warmup_steps is {spec.warmup_steps}; it must be at most {of}, {end}")
    if spec.lr_schedule != "constant" and spec.min_lr > spec.lr:
        raise ValueError(f"min_lr is {spec.min_lr}; it must be at most lr, which is {spec.lr}")
    return spec


def read_object(path: Path, what: str) -> dict[str, Any]:
    """A JSON file that holds one object; raises ValueError naming `what` it was to be."""
    where = f"the {what} {path}"
    try:
        data = read_whole(user_path(path), where)
    except FileNotFoundError as error:
        raise ValueError(f"{where} cannot be read: {error.strerror}") from None
    value = parse_sealed(data, where, any_text=False)  # a run's own spec.json is one, too
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object")
    return value


def parse_setting(text: str) -> tuple[str, Any]:
    """``"lr=1e-3"`` as a field and its value; raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not a setting; write field=value")
    name = _plain(name.strip())
    return name, field_of(name).parse(value.strip())


def flag(name: str) -> str:
    """Flag of a field."""
    return f"--{name.replace('_', '-')}"


def words_of(spec: RunSpec, *, always: str = "") -> list[str]:
    """Words of a command line by which a spec differs from the usual one of its method, and the
    field that `always` stands there, where the spec has it."""
    usual, words = flat(RunSpec(method=spec.method)), []
    for name, value in flat(spec).items():
        if name == "method" or (value == usual[name] and name != always):
            continue
        text = field_of(name).format(value)
        if name not in FIELDS and not hasattr(spec.options, name):
            words += ["--set", f"{name}={text}"]
        else:  # a value that begins with a hyphen would be taken for a flag
            words += [f"{flag(name)}={text}"] if text.startswith("-") else [flag(name), text]
    return words


def _put(merged: dict[str, Any], name: str, value: Any, *, inside: str = "") -> None:
    name = _plain(name)
    owner = {"model": MODEL, "options": catalogue().keys()}.get(inside)
    if owner is not None and name not in owner:
        raise ValueError(
            f"unknown field {name!r} in {WHOLE[inside]}; known: {', '.join(sorted(owner))}"
        )
    value = field_of(name).check(value)
    if name == "family" and value in NAMED:
        value = NAMED[value]["family"]
    (merged["model"] if name in MODEL else merged)[name] = value


def _sizes(source: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of the published model that a spec's JSON names as its family, where it does."""
    whole = source.get("model")
    inner = whole.get("family") if isinstance(whole, Mapping) else None
    given = (inner, source.get("family"), source.get("model.family"))
    return next((NAMED[name] for name in given if isinstance(name, str) and name in NAMED), {})


def _plain(name: str) -> str:
    return name.removeprefix("model.")
