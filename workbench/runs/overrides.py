"""Changing a spec by field name, from text or JSON, with every value checked against its
annotation.

The command line's ``--set``, sweep files and widgets all come through here, so that a misspelt
field or a number in quotes is one clear sentence instead of a traceback in a worker. Fields of the
model go by their own names (``layers``) or dotted (``model.layers``).
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from workbench.model.spec import ModelSpec
from workbench.runs.spec import RunSpec
from workbench.units import parse_bytes


@cache
def hints() -> dict[str, Any]:
    """Field name -> annotation, those of the model included."""
    run = {k: v for k, v in get_type_hints(RunSpec).items() if k != "model"}
    return {**{f.name: get_type_hints(ModelSpec)[f.name] for f in fields(ModelSpec)}, **run}


def make_spec(data: Mapping[str, Any], *changes: Mapping[str, Any]) -> RunSpec:
    """A spec from its JSON form, with each of `changes` (name -> value) laid over it in turn.

    Raises ValueError for an unknown field, a value of the wrong type, or what `RunSpec` refuses.
    """
    merged: dict[str, Any] = {"model": {}}
    for source in (data, *changes):
        if not isinstance(source, Mapping):
            raise ValueError(f"a run spec is a JSON object, this is a {type(source).__name__}")
        for name, value in source.items():
            if name == "model":
                if not isinstance(value, Mapping):
                    raise ValueError(f"model is {value!r}; it must be a JSON object")
                for part, inner in value.items():
                    _put(merged, part, inner, inside_model=True)
            else:
                _put(merged, name, value)
    return RunSpec.from_dict(merged)


def read_object(path: Path, what: str) -> dict[str, Any]:
    """A JSON file that holds one object; raises ValueError naming `what` it was to be."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"the {what} {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"the {what} {path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"the {what} {path} is not a JSON object")
    return data


def parse_setting(text: str) -> tuple[str, Any]:
    """``"lr=1e-3"`` as a field and its value; raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not a setting; write field=value")
    name = _plain(name.strip())
    return name, parse_value(name, value.strip())


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    return dict(parse_setting(text) for text in texts)


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
            return parse_bytes(text)
        if kind in (int, float):
            with suppress(ValueError):
                value = kind(text)
                if math.isfinite(value):
                    return value
        if kind is str:
            return text
    raise ValueError(f"{name} is {text!r}; it must be {describe(name)}")


def describe(name: str) -> str:
    """What the field takes, in words: ``a whole number or auto``."""
    words: list[str] = []
    for kind in _alternatives(_hint(name)):
        if get_origin(kind) is Literal:
            words += [str(choice) for choice in get_args(kind)]
        else:
            words.append(_WORDS[kind])
    return " or ".join(words)


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "none",
}


def _put(merged: dict[str, Any], name: str, value: Any, *, inside_model: bool = False) -> None:
    name = _plain(name)
    owner = {f.name for f in fields(ModelSpec)}
    if inside_model and name not in owner:
        raise ValueError(f"unknown field {name!r} in a model; known: {', '.join(sorted(owner))}")
    if name.endswith("_memory") and isinstance(value, str):
        value = parse_bytes(value)
    kinds = _alternatives(_hint(name))
    if not any(_is(value, kind) for kind in kinds):
        raise ValueError(f"{name} is {value!r}; it must be {describe(name)}")
    if float in kinds and isinstance(value, int):
        value = float(value)  # 1 and 1.0 are one key
    (merged["model"] if name in owner else merged)[name] = value


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)


def _plain(name: str) -> str:
    return name.removeprefix("model.")


def _hint(name: str) -> Any:
    if name not in hints():
        raise ValueError(
            f"unknown field {name!r} in a run spec; known: {', '.join(sorted(hints()))}"
        )
    return hints()[name]


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
