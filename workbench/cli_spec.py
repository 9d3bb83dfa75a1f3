"""The flags of the command line that describe a run, and the specs they make.

Every flag is a field of `RunSpec` or of its model: what a value may be, and its default, come from
there and are said in ``--help``. Fields too rare for a flag are set by name.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.model.hf_config import spec_from_config
from workbench.runs import methods
from workbench.runs.overrides import (
    describe,
    make_spec,
    parse_settings,
    parse_value,
    read_object,
)

SPEC_FLAGS = (
    (("-l", "--layers"), "layers", "transformer blocks"),
    (("--hidden",), "hidden", "hidden size"),
    (("--heads",), "heads", "attention heads"),
    (("--seq",), "seq", "tokens per sample"),
    (("--vocab",), "vocab", "rows of the token embedding"),
    (("--dropout",), "dropout", "probability of dropping"),
    (("-b", "--batch"), "batch", "samples per optimizer step"),
    (("--microbatches",), "microbatches", "equal parts the batch is computed in"),
    (("-w", "--window"), "window", "layers on the device at once (stronghold)"),
    (("--resident",), "resident", "first layers that never leave the device (stronghold)"),
    (("--activations",), "activations", "what becomes of activations"),
    (("--pulled",), "pulled", "layers after them whose states come to the device (stronghold)"),
    (("--kept",), "kept", "last layers that keep activations, of --activations auto (stronghold)"),
    (("--clipping",), "clipping", "whether updates wait for the norm (stronghold, harmony)"),
    (("--optimizer-tier",), "optimizer_tier", "where offloaded optimizer states live"),
    (("--disk-layers",), "disk_layers", "last layers whose states are on the disk (stronghold)"),
    (("--host-workers",), "host_workers", "host updates at once"),
    (("--ranks",), "ranks", "devices to train on (harmony, and what runs on several)"),
    (("--forward-size",), "forward_size", "samples of a forward micro-batch (harmony)"),
    (("--backward-size",), "backward_size", "samples of a backward micro-batch (harmony)"),
    (
        ("--forward-packs",),
        "forward_packs",
        "units of each forward pack, such as '2 2', not the last backward one's; or none (harmony)",
    ),
    (
        ("--backward-packs",),
        "backward_packs",
        "units of each backward pack, such as '2 2 2'; pinned with the three above (harmony)",
    ),
    (("--packing",), "packing", "who chooses them (harmony)"),
    (("--steps",), "steps", "optimizer steps"),
    (("--seed",), "seed", "seed of weights, samples and dropout"),
    (("--device",), "device", "where to compute"),
    (("--dtype",), "dtype", "of weights, activations and gradients"),
    (("--compile",), "compile", "compiled layers"),
    (("--replay",), "replay", "passes of layers that the GPU launches by itself"),
    (("--device-memory",), "device_memory", "budget of the device, e.g. 32GiB"),
    (("--host-memory",), "host_memory", "budget of the host, e.g. 90GiB"),
    (("--disk-memory",), "disk_memory", "budget of the disk"),
    (("--text",), "text", "stdlib, a text file, or a folder of WikiText, of bert's MRPC"),
    (("--tokenizer",), "tokenizer", "bytes, or bpe:N; wordpiece of pairs"),
    (("--clip",), "clip", "global gradient-norm clipping"),
    (("--lr",), "lr", "peak learning rate"),
    (("--min-lr",), "min_lr", "learning rate at the end of the decay"),
    (("--lr-schedule",), "lr_schedule", "decay of the learning rate"),
    (("--warmup-steps",), "warmup_steps", "steps of linear growth"),
    (("--weight-decay",), "weight_decay", "of matrices, not of biases and norms"),
    (
        ("--save-every",),
        "save_every",
        "steps between checkpoints; 0 for none; the same command goes on from the newest",
    ),
    (
        ("--start-from",),
        "start_from",
        "run, by key or folder, whose checkpoint to go on from, under any method and ranks",
    ),
)
"""Flags, field of the spec, help. What a value may be comes from the field's annotation."""


class Parser(argparse.ArgumentParser):
    """One sentence instead of a usage text, and no guessing of abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        # No flag begins so: -5GiB is a value, to be refused as one, as -5 is for argparse itself.
        self._negative_number_matcher = re.compile(r"-[\d.]")

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def add_spec_flags(
    parser: argparse.ArgumentParser, method_help: str | None, *, window: str
) -> None:
    """`method_help`: what ``all`` does there; None for a verb that is not about methods."""
    if method_help is None:
        parser.set_defaults(method=None)
    else:
        known = ", ".join((*methods.METHODS, "all"))
        peers = ", ".join([*methods.PEERS, *methods.PARALLEL])
        several = "with several --ranks, or a module, all are those that train so"
        words = f"{known}; {method_help}; by name only: {peers}; {several}"
        parser.add_argument("-m", "--method", help=words)
    group = parser.add_argument_group("what to train")
    for flags, field, words in SPEC_FLAGS:
        default = window if field == "window" else _default(field)
        group.add_argument(
            *flags,
            dest=field,
            default=argparse.SUPPRESS,
            metavar=flags[-1].lstrip("-").rpartition("-")[2].upper(),
            help=f"{words} ({describe(field)}; default {default})",
        )
    group.add_argument(
        "--hf-config",
        metavar="PATH",
        help="a Hugging Face config.json of a decoder, instead of layers, hidden and heads",
    )
    group.add_argument(
        "--spec", type=Path, metavar="FILE", help="a spec in JSON; flags override it"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other field of the spec, such as family=bert, vgg, resnet, or a function of your "
        "own, package.module:function, that makes a module and data (workbench/model/custom.py)",
    )


def specs_from(arguments: argparse.Namespace, *, window: int | str) -> list[RunSpec]:
    """The specs the flags describe, one a method; raises ValueError.

    `window` is the default, cut to the number of layers, of a method that does not refuse one.
    """
    data: dict[str, Any] = read_object(arguments.spec, "spec") if arguments.spec else {}
    changes = {
        field: parse_value(field, getattr(arguments, field))
        for _, field, _ in SPEC_FLAGS
        if hasattr(arguments, field)
    }
    changes |= parse_settings(arguments.set)
    if arguments.hf_config:
        if said := sorted(changes.keys() & {field.name for field in fields(ModelSpec)} - {"seq"}):
            raise ValueError(
                f"{' and '.join(said)} cannot be given beside --hf-config, whose file says them; "
                "of the model only seq can"
            )
        told = spec_from_config(arguments.hf_config, seq=changes.get("seq"))
        changes["model"] = told.to_dict()
    asked = changes.pop("method", data.get("method", "all"))
    asked = asked if arguments.method is None else arguments.method
    names = list(methods.METHODS) if asked == "all" else [methods.find(asked).name]
    specs = [make_spec(data, {**changes, "method": name}) for name in names]
    first = specs[0]
    if asked == "all" and (first.ranks > 1 or first.model.decomposed):
        able = [
            method.name
            for method in methods.known().values()
            if (method.parallel or first.ranks == 1)
            and (method.modules or not first.model.decomposed)
        ]
        specs = [first.with_(method=name) for name in able]
    if "window" not in changes and "window" not in data and window != "auto":
        specs = [
            spec
            if methods.find(spec.method).refuses
            else spec.with_(window=min(window, max(2, spec.model.layers)))
            for spec in specs
        ]
    return specs


def _default(field: str) -> str:
    spec = RunSpec(method="")
    value = getattr(spec.model if hasattr(spec.model, field) else spec, field)
    return "none" if value is None else str(value)
