"""``workbench aceso train --flexpipe-config PLAN``: the artifact's training commands, as words of
``workbench run``.

Flags of the artifact's trainer (Megatron-LM's of version 2.4) mean here what they mean there, with
its scripts' defaults. Flags that say again what the plan says, or what this runtime does by itself,
are refused by name. Flags of our own (``--hidden``, ``-b``, ``--results``, ``--set``, ...) may
follow after ``--``.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from workbench.core.paths import user_path
from workbench.methods.aceso.plan import load_plan
from workbench.runs.overrides import FIELDS, flag

MEANT: dict[str, tuple[str, type, Any]] = {
    "train-iters": ("steps", int, 3), "lr": ("lr", float, 1.5e-4),
    "min-lr": ("min_lr", float, 1e-5), "lr-decay-style": ("lr_schedule", str, "cosine"),
    "lr-decay-iters": ("lr_decay_steps", int, 320000), "lr-warmup-fraction": ("", float, 0.01),
    "weight-decay": ("weight_decay", float, 0.01), "clip-grad": ("clip", float, 1.0),
    "adam-beta1": ("beta1", float, None), "adam-beta2": ("beta2", float, None),
    "adam-eps": ("eps", float, None), "seed": ("seed", int, None), "data-path": ("text", str, None),
    "save-interval": ("save_every", int, None), "eval-interval": ("eval_every", int, None),
}  # fmt: skip
"""Flag -> field, kind, and what the artifact's scripts give."""
SAID = (
    "num-layers", "encoder-seq-length", "seq-length", "max-position-embeddings",
    "num-attention-heads", "hidden-size", "ffn-hidden-size", "kv-channels", "micro-batch-size",
    "global-batch-size", "tensor-model-parallel-size", "pipeline-model-parallel-size",
)  # fmt: skip
"""Flags whose values the plan has."""
OWN = "this runtime does that by itself"
NARROWER = "the plan says it, and --hidden, --heads, --seq and -b after -- make it narrower"
GONE = dict.fromkeys(SAID, NARROWER) | {
    "DDP-impl": OWN, "log-interval": "each step is told", "loss-scale": "bf16 needs no loss scale",
    "initial-loss-scale": "bf16 needs no loss scale", "eval-iters": "give --set eval_samples=N",
    "distributed-backend": OWN, "no-scatter-gather-tensors-in-pipeline": OWN,
    "checkpoint-activations": "the plan says what is recomputed", "vocab-file": "give --tokenizer",
    "merge-file": "give --tokenizer", "split": "give --set eval_share=SHARE",
    "interleave-factor": "stages of a plan do not interleave",
}  # fmt: skip
"""Flag of the published trainer -> why there is none."""


def add(verbs: Any) -> None:
    """Add the verb."""
    verb = verbs.add_parser("train", help="train a plan, by the artifact's flags")
    add_flag = verb.add_argument
    add_flag("--flexpipe-config", type=Path, required=True, metavar="PLAN", help="the plan's file")
    for name, (field, kind, default) in MEANT.items():
        told = f"as {flag(field)} of run" if field else "part of the decay in which the rate grows"
        add_flag(f"--{name}", type=kind, default=default, metavar="X",
                 help=f"{told} (default {'as there' if default is None else default})")  # fmt: skip
    add_flag("--fp16", action="store_true", help="train in bf16, which needs no loss scale")
    add_flag("--bf16", action="store_true", help="train in bf16")
    add_flag("--log-path", type=Path, metavar="DIR", help="folder for a CSV file of each process")
    for name in GONE:
        add_flag(f"--{name}", nargs="*", help=argparse.SUPPRESS)
    add_flag("words", nargs=argparse.REMAINDER, metavar="-- FLAGS", help="flags of run, after --")
    verb.set_defaults(handler=_train)


def _train(given: argparse.Namespace) -> int:
    from workbench.cli import main

    for name, why in GONE.items():
        if getattr(given, name.replace("-", "_")) is not None:
            raise ValueError(f"--{name} has no meaning: {why}")
    if not 0 <= given.lr_warmup_fraction < 1:
        raise ValueError(f"--lr-warmup-fraction is {given.lr_warmup_fraction:g}; it must be from 0 "
                         "to below 1")  # fmt: skip
    path = user_path(given.flexpipe_config)
    plan = load_plan(path)
    ours = words_of(given, path, plan.gpus)
    if given.fp16:
        print(
            "workbench: --fp16 is bf16 here, with fp32 masters and no loss scale", file=sys.stderr
        )
    print(f"workbench: as {shlex.join(['workbench', 'run', *ours])}", file=sys.stderr)
    code = main(["run", *ours])
    if code == 0 and given.log_path:
        _copy_times(ours, path.stem, user_path(given.log_path))
    return code


def words_of(given: argparse.Namespace, plan: Path, ranks: int) -> list[str]:
    """Words of ``workbench run``."""
    words = ["-m", "aceso", "--plan", str(plan), "--ranks", str(ranks)]
    if given.fp16 or given.bf16:
        words += ["--dtype", "bf16"]
    for name, (field, _, _) in MEANT.items():
        value = getattr(given, name.replace("-", "_"))
        if not field:
            field, value = "warmup_steps", round(value * given.lr_decay_iters)
        if name == "clip-grad" and not value:
            value = "none"
        if value is not None:
            words += _words(field, value)
    return [*words, *(given.words[1:] if given.words[:1] == ["--"] else given.words)]


def _words(field: str, value: Any) -> list[str]:
    return [flag(field), str(value)] if field in FIELDS else ["--set", f"{field}={value}"]


def _copy_times(words: list[str], name: str, folder: Path) -> None:
    """Files of each process by the names that the artifact gives them."""
    from workbench.cli import make_parser
    from workbench.cli.spec import specs_from
    from workbench.runs.resolve import resolve
    from workbench.runs.runner import Job
    from workbench.runs.store import Store

    arguments = make_parser().parse_args(["run", *words])
    store = Store(arguments.results)
    (spec,) = (resolve(each, store.root) for each in specs_from(arguments, window="auto"))
    (folder / "csv").mkdir(parents=True, exist_ok=True)
    for file in sorted((store.folder(Job(spec, store).key) / "stages").glob("*.csv")):
        shutil.copyfile(file, folder / "csv" / f"{name}_{file.name}")
    print(f"times and memory of each process: {folder / 'csv'}")
