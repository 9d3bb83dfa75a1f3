"""``workbench aceso profile-ops | profile-p2p``: times and sizes of operators on this machine, and
bandwidths of messages, as CSV files of the artifact's form, which ``--profiled-time-path`` of the
other verbs reads.

A profile that was ended goes on where it was. Exit codes are those of the other verbs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from workbench.cli.aceso.asked import SIZES
from workbench.core.bytesize import parse_bytes
from workbench.core.files import write_whole
from workbench.core.host import gpus
from workbench.core.model_spec import ModelSpec
from workbench.core.paths import user_path
from workbench.methods.aceso.ask import MICROS
from workbench.methods.aceso.plan import subject_of
from workbench.methods.aceso.profiled import chain_of, variants_of, write_profiles
from workbench.model.operators.sizes import CLASSES, VOCABULARY
from workbench.profile.machine import this_machine
from workbench.profile.shard_store import shard_costs
from workbench.profile.shards import Repeats
from workbench.runs.store import REPOSITORY_RESULTS

TINY_VOCABULARY = 256
US = 1e-6
MOST_MB = 4096


def add(verbs: Any) -> None:
    """Add the verbs."""
    p2p = verbs.add_parser("profile-p2p", help="bandwidths between two devices of this machine")
    p2p.add_argument("--max-data-size", type=int, default=1024, metavar="MB", help="(1024)")
    _add_repeats(p2p, warmup=20)
    p2p.set_defaults(handler=_profile_p2p)
    parser = verbs.add_parser("profile-ops", help="times and sizes of operators on this machine")
    add = parser.add_argument
    add("--model-name", choices=[n for n in SIZES if n != "scale-layer"], default="gpt")
    add("--model-size", metavar="SIZE", help="a published size, such as 1_3B, or tiny")
    add("--hidden", type=int, metavar="H", help="width, where it is not the size's")
    add("--heads", type=int, metavar="A", help="attention heads, where they are not the size's")
    add("--seq-len", type=int, metavar="S", help="tokens of a sample")
    add("--vocab", type=int, metavar="V", help="words (default: as published; tiny: 256)")
    add("--micro-batch-size", type=int, nargs="+", metavar="M", help="samples of a device")
    add("--tp", type=int, nargs="+", default=[1, 2, 4, 8], help="devices of a row (1 2 4 8)")
    add("--unfused", action="store_true", help="time each operator of attention by itself, as "
        "plans train with --fused false")  # fmt: skip
    add("--prof-repeat-threshold", type=float, metavar="US", help="microseconds")
    add("--prof-warmup-threshold", type=float, metavar="US",
        help="microseconds from which passes that warm up count")  # fmt: skip
    add("--device-memory", metavar="BYTES", help="memory that an operator may take, such as 8GiB")
    add("--fresh", action="store_true", help="measure again what is stored")
    add("--results", type=Path, default=REPOSITORY_RESULTS, metavar="DIR", help="of the store")
    _add_repeats(parser, warmup=20)
    parser.set_defaults(handler=_profile)


def _add_repeats(parser: argparse.ArgumentParser, warmup: int) -> None:
    add = parser.add_argument
    add("--prof-warmup-time", "--prof-warmup-times", type=int, default=warmup, metavar="N")
    add("--prof-repeat-time", "--prof-repeat-times", type=int, nargs="+", default=[50], metavar="N",
        help="repeats; a second number is for passes over a threshold")  # fmt: skip
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--profiled-time-path", type=Path, required=True, metavar="DIR", help="folder of the CSVs")


def _profile_p2p(given: argparse.Namespace) -> int:
    if not 1 <= given.max_data_size <= MOST_MB:
        raise ValueError(
            f"--max-data-size is {given.max_data_size}; it must be from 1 to {MOST_MB}"
        )
    repeats = Repeats(warmup=given.prof_warmup_time, times=tuple(given.prof_repeat_time))
    machine = this_machine(given.device)
    if machine.device == "cuda" and (count := len(gpus())) < 2:
        raise ValueError(f"there is {count} GPU; messages are measured between two: give "
                         "--device cpu, or files of another machine")  # fmt: skip
    from workbench.profile.messages import MB, measure

    sizes = [1 << power for power in range(given.max_data_size.bit_length())]
    seconds = measure(machine.device, sizes, repeats.warmup, repeats.times[0])
    speeds = [size * MB / each / 1e9 for size, each in zip(sizes, seconds, strict=True)]
    folder = user_path(given.profiled_time_path)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(str, sizes)), ",".join(f"{each:.3f}" for each in speeds)]
    write_whole(folder / "p2p_intra_node.csv", "\n".join(lines) + "\n")
    print(f"messages of up to {sizes[-1]} MB take {min(speeds):.2f} to {max(speeds):.2f} GB/s")
    return 0


def _profile(given: argparse.Namespace) -> int:
    name = given.model_name
    subject = subject_of(
        name, given.model_size or SIZES[name], 1, seq=given.seq_len, hidden=given.hidden,
        heads=given.heads,
    )  # fmt: skip
    samples = given.micro_batch_size or MICROS[subject.model]
    shape = dict(subject.shape)
    limit = shape.get("num_attention_heads", shape.get("in_channels"))
    for flag, values in (("micro-batch-size", samples), ("tp", given.tp)):
        if min(values) < 1:
            raise ValueError(f"--{flag} has {min(values)}; it must be 1 or more")
    for tp in given.tp:
        if limit % tp:
            raise ValueError(f"--tp has {tp}; it must divide {limit}, the heads or channels")
    tiny = subject.size == "tiny"
    vocab = given.vocab or (TINY_VOCABULARY if tiny else VOCABULARY.get(subject.model, CLASSES))
    chain = chain_of(subject, ModelSpec(vocab=vocab), fused=not given.unfused)
    variants = variants_of(chain, samples, given.tp)
    limits = (given.prof_repeat_threshold, given.prof_warmup_threshold)
    long_s, counts_s = (None if each is None else each * US for each in limits)
    repeats = Repeats(warmup=given.prof_warmup_time, times=tuple(given.prof_repeat_time),
                      long_s=long_s, warmup_counts_s=counts_s)  # fmt: skip
    budget = parse_bytes(given.device_memory) if given.device_memory else None
    costs = shard_costs(
        chain, variants, user_path(given.results), lambda line: print(line, file=sys.stderr),
        device=given.device, repeats=repeats, budget=budget, fresh=given.fresh,
    )  # fmt: skip
    folder = user_path(given.profiled_time_path)
    files = write_profiles(folder, subject.name, chain, costs, variants, lambda exchange, tp: 0.0)
    print(f"{len(files)} profiles of {subject.name}: {folder}")
    if max(given.tp) > 1:
        print("times of tp 2 and more are of one device's shards, without collectives, which "
              "are not measured")  # fmt: skip
    return 0
