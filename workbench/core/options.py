"""Options of methods: what a run may be told that is not for every method.

Each row of the table of methods names a dataclass, in the method's folder, whose fields are its
options. A field there, with a type, a default and a docstring, is all that an option is: it is a
flag, a field of forms, an axis of sweeps, a line of ``--help``, a value in records, and it is
checked. Methods that share an option inherit the class that declares it. People write options flat,
beside the other fields of a spec, so a name is one option, of whatever methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from workbench.core.fields import Field, fields_of
from workbench.core.methods import imported, known, lookup
from workbench.core.schema import check_words, read_as


@dataclass(frozen=True, kw_only=True)
class Options:
    """No options: what a method has that names none, and what the others inherit."""

    halved: ClassVar[bool] = False
    """Whether backward passes are in two halves, so that these are profiled each for itself."""
    checkpointed: ClassVar[bool] = False
    """Whether backward passes may begin at checkpoints, so that such passes are profiled, too."""
    tries_parts: ClassVar[bool] = True
    """Whether the number of micro-batches may be found by planning with several: not where the
    planner chooses by itself, and not where updates depend on it."""
    uneven: ClassVar[bool] = False
    """Whether micro-batches may differ by one sample."""
    calls: ClassVar[bool] = False
    """Whether units may be any sets of a model's calls."""
    synonyms: ClassVar[Mapping[str, str]] = {}
    """Names that options of other methods have -> options of these, which people may give by them:
    of one method, one name says one thing."""

    def __post_init__(self) -> None:
        check_words(self)

    def check(self, spec: Any) -> None:
        """Raise ValueError for an option that does not go with the other fields of its RunSpec."""

    @classmethod
    def fields_of_files(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a RunSpec, and of its ``model``, that a file says which the `given` ones name;
        those given beside it take their places. Raises ValueError for a file that says none."""
        return {}

    def settled(self, spec: Any, results: Path) -> dict[str, Any]:
        """Fields of a RunSpec that options name a file of the results for -> their values. Raises
        ValueError for a file that is not there or does not go with the spec."""
        return {}

    @property
    def on_disk(self) -> bool:
        """Whether they put something on the disk."""
        return False

    def micro_sizes(self, spec: Any) -> set[int]:
        """Samples of a run's micro-batches, where its spec says them and no planner chooses."""
        return set()


WRITTEN = {"optimizer_tier": "host"}
"""Values that older versions wrote for methods without the option, beside its default."""


def options_of(method: str) -> type[Options]:
    """The class of a method's options; of a method that is in no table, one without any."""
    row = lookup(method)
    return Options if row is None else imported(row.options)


def catalogue() -> dict[str, Field]:
    """All options of all methods, by name."""
    return _catalogue(tuple((row.name, row.options) for row in known().values()))


def takes(method: str, name: str) -> bool:
    """Whether the method has the option."""
    return name in {each.name for each in fields(options_of(method))}


def choose(method: str, given: Mapping[str, Any], *, lenient: bool = False) -> Options:
    """The method's options, with the values of `given` by name.

    Raises ValueError for a value that does not fit, for a name that is no option, and for an option
    of other methods, unless it is at its default. `lenient` leaves all such options out: where
    several methods are told the same, each takes what it has.
    """
    kind = options_of(method)
    if not lenient:
        named = {kind.synonyms[name]: given[name] for name in given if name in kind.synonyms}
        given = {name: given[name] for name in given if name not in kind.synonyms} | named
    own = {each.name for each in fields(kind)}
    for name in sorted(given.keys() - own):
        option, value = catalogue().get(name), given[name]
        if option is None:
            raise ValueError(f"unknown field {name!r} in a run spec of {method or 'no method'}")
        if not lenient and value not in (option.default, WRITTEN.get(name, option.default)):
            raise ValueError(
                f"{name} is {value!r}; with {method} it has no meaning, leave it at "
                f"{option.default!r}: it is an option of {', '.join(option.methods)}"
            )
    return read_as(kind, {name: value for name, value in given.items() if name in own}, "")


@cache
def _catalogue(rows: tuple[tuple[str, str], ...]) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for method, path in rows:
        for name, own in fields_of(imported(path)).items():
            option = replace(own, methods=(*(found[name].methods if name in found else ()), method))
            assert replace(found.get(name, option), methods=option.methods) == option, name
            found[name] = option
    for method, path in rows:
        for name, meant in imported(path).synonyms.items():
            of, own = found[name], found[meant]
            found[name] = replace(
                of, kind=of.kind | own.kind, methods=(*of.methods, method),
                about=f"{of.about} With {method}: {own.about}",
            )  # fmt: skip
    return found
