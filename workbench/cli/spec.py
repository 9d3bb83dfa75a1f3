"""The flags of the command line that describe a run, and the specs they make.

Every flag is a field of `RunSpec`, of its model, or an option of methods: what it means, what a
value may be, and its default, come from there and are said in ``--help``. Fields too rare for a
flag are set by name.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from workbench.core import methods
from workbench.core.fields import Field
from workbench.core.model_spec import GPT_FAMILY, OF_DECODERS, T5_FAMILY, ModelSpec
from workbench.core.options import catalogue, takes
from workbench.core.paths import user_path
from workbench.core.spec import ROW_FILES, RunSpec, field_of
from workbench.model.hf_config import spec_from_config
from workbench.model.tokenizer_folder import FILE as TOKENIZER_FILE
from workbench.runs.overrides import (
    FIELDS,
    FLAGS,
    MODEL,
    USUAL,
    flag,
    make_spec,
    parse_setting,
    read_object,
    twice,
)
from workbench.runs.store import REPOSITORY_RESULTS

SHORT = {"layers": "-l", "batch": "-b", "window": "-w"}


def add_results_flag(
    parser: argparse.ArgumentParser, default: Path | None = REPOSITORY_RESULTS
) -> None:
    """``--results``; without a default it is that of a sweep's file."""
    where = f"folder of records, measurements and reports (default {default or 'as FILE says'})"
    parser.add_argument("--results", type=Path, default=default, metavar="DIR", help=where)


class Parser(argparse.ArgumentParser):
    """One sentence instead of a usage text, and no guessing of abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        # No flag begins so: -5GiB is a value, to be refused as one, as -5 is for argparse itself.
        self._negative_number_matcher = re.compile(r"-[\d.]")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Each verb refuses its own unknown words, and names the flag that is most like them."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            like = get_close_matches(unknown[0].split("=")[0], self._option_string_actions, 1)
            guess = f", did you mean {like[0]}?" if like else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{guess}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of ending the process."""
        if lacks := re.fullmatch(r"argument (?:-\w/)?(--[\w-]+): expected one argument", message):
            message += _longer(lacks[1])
        raise ValueError(f"{message}; see {self.prog} --help")


def _longer(given: str) -> str:
    """Words on a switch whose name begins so, for a flag that lacks a value or has no meaning."""
    switches = (flag(name) for name in FIELDS if field_of(name).kind is bool)
    return next((f"; did you mean {x}?" for x in switches if x.startswith(f"{given}-")), "")


def add_spec_flags(
    parser: argparse.ArgumentParser, method_help: str | None, *, window: str, peers: bool = False
) -> None:
    """`method_help`: what ``all`` does there; None for a verb that is not about methods. `peers` as
    of `specs_from`."""
    if method_help is None:
        parser.set_defaults(method=None)
    else:
        every = methods.compared(1, ModelSpec()) if peers else methods.METHODS
        known = ", ".join((*every, "all"))
        others = ", ".join(name for name in methods.known() if name not in every)
        several = "with several --ranks, or a module, all means the methods that can train so"
        words = f"{known}; {method_help}; by name only: {others}; {several}"
        parser.add_argument("-m", "--method", help=words)
    titled = {title: parser.add_argument_group(title) for title in (*FLAGS, "anything else")}
    for title, names in FLAGS.items():
        for name in names:
            field = field_of(name)
            _add_flag(titled[title], replace(field, default=USUAL.get(name, field.default)))
    titled["model"].add_argument(
        "--hf-config",
        metavar="PATH",
        help="a Hugging Face config.json of a decoder or a T5, instead of layers, hidden and "
        "heads; training begins from the safetensors beside it, unless --weights says otherwise",
    )
    group = titled["anything else"]
    group.add_argument(
        "--spec", type=Path, metavar="FILE", help="a spec in JSON; flags override it"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other field of the spec, such as family=bert, vgg, resnet, wide-resnet (or "
        "wrn_28x10_c100_dr03_gn, wrn_16x4_c10 and the like), wide-resnet-imagenet (-1B and the "
        "like), vit (or vit_base_patch16_384, vit_large_patch32_384), t5 (or t5-small, t5-base, "
        "t5-large, t5-3b with their sizes), megatron-t5 (-770M and the like), gpt-1_3B and the "
        "like, or a function of your own, "
        "package.module:function, that makes a module and data (workbench/model/custom.py)",
    )

    groups: dict[tuple[str, ...], Any] = {}
    for name, option in catalogue().items():
        if option.methods not in groups:
            title = f"options of {', '.join(option.methods)}"
            groups[option.methods] = parser.add_argument_group(title)
        shown = replace(option, default=window) if name == "window" else option
        _add_flag(groups[option.methods], shown)


def in_flags(sentence: str, arguments: argparse.Namespace | None) -> str:
    """A sentence about a spec as its writer knows it: fields by their flags, but for those that
    `--set` named or the file of `--spec` has. A field of one word is one where a value follows."""
    if not hasattr(arguments, "set"):
        return sentence
    by_name = {text.partition("=")[0].strip() for text in arguments.set}
    for name in (*FIELDS, *catalogue()):
        in_file = arguments.spec is not None and not hasattr(arguments, name)
        if not in_file and name not in by_name:
            after = r"(?![\w=])" if "_" in name else r"(?= is (?:['\d-]|[Nn]one\b))"
            words = rf"(?<![\w.'-]){name}{after}|^{name}(?= is )"
            sentence = re.sub(words, flag(name), sentence)
    return sentence


def _add_flag(group: Any, field: Field) -> None:
    name, default = field.name, "none" if field.default is None else field.default
    group.add_argument(
        *([SHORT[name]] if name in SHORT else []),
        flag(name),
        dest=name,
        default=argparse.SUPPRESS,
        metavar=name.rpartition("_")[2].upper(),
        **({"nargs": "?", "const": "true"} if field.kind is bool else {}),
        help=f"{field.about} ({field.takes}; default {default})".replace("%", "%%"),
    )


def of_config(
    path: str | Path, changes: Mapping[str, Any], data: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Changes of the spec in `data`, with the model of a local Hugging Face configuration, and the
    tokenizer beside it where a T5 or rows need one. Raises ValueError for sizes beside those of the
    configuration, which was given as `name`, and as `spec_from_config`."""
    if said := sorted(changes.keys() & MODEL - {"seq", "target_seq", *OF_DECODERS}):
        raise ValueError(
            f"{' and '.join(said)} cannot be given beside {name}, whose file says them; "
            f"of the model only seq, {' and '.join(OF_DECODERS)} can, and target_seq of a T5"
        )
    changes = {**changes}
    given = {each: changes.pop(each, None) for each in ("seq", "target_seq")}
    told = spec_from_config(path, **given)
    changes["model"] = told.to_dict()
    own = user_path(path)
    own = own.parent if own.suffix == ".json" else own
    rows = str(changes.get("text", data.get("text", ""))).lower().endswith(ROW_FILES)
    if (told.family == T5_FAMILY or rows) and "tokenizer" not in {*changes, *data}:
        changes |= {"tokenizer": str(own)} if (own / TOKENIZER_FILE).is_file() else {}
    return changes


def specs_from(
    arguments: argparse.Namespace,
    *,
    window: int | str,
    peers: bool = False,
    refused: dict[str, str] | None = None,
) -> list[RunSpec]:
    """The specs the flags describe, one a method; raises ValueError. All methods are the paper's
    on one device; with `peers`, others as well. `refused` as of `specs_for`.

    `window` is the default, cut to the number of layers, of a method that has one and trains the
    published model; the planner chooses it for others. Where all methods are asked, each takes the
    options that it has.
    """
    data: dict[str, Any] = read_object(arguments.spec, "spec") if arguments.spec else {}
    changes = {
        name: field_of(name).parse(getattr(arguments, name))
        for name in (*FIELDS, *catalogue())
        if hasattr(arguments, name)
    }
    for name, value in map(parse_setting, arguments.set):
        if name in changes:
            raise twice(name, f"{name}={changes[name]}", f"--set {name}={value}")
        changes[name] = value
    if arguments.hf_config:
        changes = of_config(arguments.hf_config, changes, data, "--hf-config")
    asked = changes.pop("method", data.get("method", "all"))
    asked = asked if arguments.method is None else arguments.method
    for name in changes.keys() & catalogue().keys():
        meant = _longer(flag(name))
        if meant and asked != "all" and not takes(asked, name):
            of = f"an option of {', '.join(catalogue()[name].methods)}, not of {asked}"
            raise ValueError(f"{name} is {changes[name]!r}, {of}{meant}")
    specs = specs_for(data, changes, asked, peers=peers, refused=refused)
    if window != "auto" and not {"window"} & {*changes, *data, *data.get("options", {})}:
        specs = [
            spec.with_(window=min(window, max(2, spec.model.layers)))
            if takes(spec.method, "window") and spec.model.family == GPT_FAMILY
            else spec
            for spec in specs
        ]
    return specs


def specs_for(
    data: Mapping[str, Any],
    changes: Mapping[str, Any],
    asked: str,
    *,
    peers: bool = False,
    refused: dict[str, str] | None = None,
) -> list[RunSpec]:
    """The specs of a method, or of ``all`` that can train so, from JSON and changes by name. A
    method that cannot be asked so is left out and said in `refused`, where that is given and others
    can be."""
    everything = asked == "all"
    several = [*methods.METHODS, *methods.installed()]
    names = several if everything else [methods.find(asked).name]

    def make(name: str) -> RunSpec:
        return make_spec(data, {**changes, "method": name}, lenient=everything)

    specs = [make(name) for name in names]
    first = specs[0]
    if everything and (peers or first.ranks > 1 or first.model.decomposed):
        specs, names = [], methods.compared(first.ranks, first.model)
        for name in names:
            try:
                specs.append(make(name))
            except ValueError as error:
                if refused is None or (name == names[-1] and not specs):
                    raise
                refused[name] = str(error)
    return specs
