"""Changing a spec by field name, from text or JSON, with every value checked against its
annotation.

The command line's ``--set``, sweep files and widgets all come through here, so that a misspelt
field or a number in quotes is one clear sentence instead of a traceback in a worker. Options of
methods and fields of the model go by their own names (``layers``), these also dotted
(``model.layers``).
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from workbench.core import schema
from workbench.core.bytesize import parse_bytes
from workbench.core.files import read_whole
from workbench.core.model_spec import ModelSpec
from workbench.core.options import catalogue
from workbench.core.paths import user_path
from workbench.core.sealed import parse_sealed
from workbench.core.spec import RunSpec

MODEL = frozenset(field.name for field in fields(ModelSpec))
WHOLE = {"model": "a model", "options": "options"}
"""Parts of a spec's JSON form whose fields people write beside the others."""


@cache
def _common() -> dict[str, Any]:
    run, model = get_type_hints(RunSpec), get_type_hints(ModelSpec)
    return {name: model[name] for name in MODEL} | {
        name: kind for name, kind in run.items() if name not in WHOLE
    }


def hints() -> dict[str, Any]:
    """Field name -> annotation, those of the model and all options included."""
    return _common() | {name: option.kind for name, option in catalogue().items()}


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
        for name, value in source.items():
            if name not in WHOLE:
                _put(merged, name, value)
                continue
            if not isinstance(value, Mapping):
                raise ValueError(f"{name} is {value!r}; it must be a JSON object")
            for part, inner in value.items():
                _put(merged, part, inner, inside=name)
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
    return name, parse_value(name, value.strip())


def parse_value(name: str, text: str) -> Any:
    """Text as a value of the field; raises ValueError."""
    for kind in _alternatives(_hint(name)):
        if kind is types.NoneType and text.lower() in ("none", "null"):
            return None
        if get_origin(kind) is Literal and text in get_args(kind):
            return text
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind is int and name.endswith("_memory") and text.lower() != "none":
            return _checked(name, _amount(name, text))
        if kind in (int, float) and (value := _number(kind, text)) is not None:
            return _checked(name, value)
        if kind is str:
            return text
    raise ValueError(f"{name} is {text!r}; it must be {describe(name)}")


def describe(name: str) -> str:
    """Values that the field takes, in words: ``a whole number or auto``."""
    return schema.describe(_hint(name)).replace("null", "none")


def _put(merged: dict[str, Any], name: str, value: Any, *, inside: str = "") -> None:
    name = _plain(name)
    owner = {"model": MODEL, "options": catalogue().keys()}.get(inside)
    if owner is not None and name not in owner:
        raise ValueError(
            f"unknown field {name!r} in {WHOLE[inside]}; known: {', '.join(sorted(owner))}"
        )
    if name.endswith("_memory") and isinstance(value, str):
        value = _amount(name, value)
    (merged["model"] if name in MODEL else merged)[name] = _checked(name, value)


def _amount(name: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _checked(name: str, value: Any) -> Any:
    """The value as the field holds it: where any number is meant, 1 is 1.0, so both are one key."""
    try:
        return schema.read_as(_hint(name), value, name)
    except ValueError:
        if type(value) is int and abs(value) >= schema.WHOLE and int in _alternatives(_hint(name)):
            digits = int(math.log10(abs(value))) + 1
            raise ValueError(f"{name} has {digits} digits; it must have 64 bits at most") from None
        raise


def _number(kind: type, text: str) -> int | float | None:
    """None where the text is no finite number of the kind."""
    with suppress(ValueError):
        value = kind(text)
        return value if kind is int or math.isfinite(value) else None
    return None


def _plain(name: str) -> str:
    return name.removeprefix("model.")


def _hint(name: str) -> Any:
    if name in _common():
        return _common()[name]
    if name in (options := catalogue()):
        return options[name].kind
    raise ValueError(f"unknown field {name!r} in a run spec; known: {', '.join(sorted(hints()))}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
