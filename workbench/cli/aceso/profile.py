"""``workbench aceso profile-ops | profile-comm | profile-p2p``: times and sizes of operators on
this machine, times of collectives, and bandwidths of messages, as CSV files of the artifact's form,
which ``--profiled-time-path`` of the other verbs reads.

A profile that was ended goes on where it was. Operators and collectives may come in any order: of
those that were measured, files are written anew. Exit codes are those of the other verbs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from workbench.cli.aceso.asked import SIZES
from workbench.core.bytesize import parse_bytes
from workbench.core.files import write_whole
from workbench.core.host import gpus
from workbench.core.model_spec import ModelSpec
from workbench.core.paths import user_path
from workbench.methods.aceso.ask import MICROS
from workbench.methods.aceso.plan import subject_of
from workbench.methods.aceso.profiled import (
    Exchanges,
    chain_of,
    file_of,
    variants_of,
    write_collectives,
    write_profiles,
)
from workbench.model.operators.sizes import CLASSES, VOCABULARY
from workbench.profile.collective_store import collectives, known_collectives
from workbench.profile.collectives import MB, Collective, Collectives, powers
from workbench.profile.machine import this_machine
from workbench.profile.shard_store import ShardCosts, shard_costs
from workbench.profile.shards import Chain, Repeats, Variant
from workbench.runs.store import REPOSITORY_RESULTS

TINY_VOCABULARY = 256
US = 1e-6
MOST_MB, MOST_RANKS = 4096, 64
MOST_COMM_MB = {"cuda": MOST_MB, "cpu": 64}
"""Of all devices of a group together."""


class Asked(NamedTuple):
    """A model, and how its operators are divided."""

    name: str
    chain: Chain
    variants: list[Variant]
    budget: int | None
    """Bytes that an operator may take."""


def add(verbs: Any) -> None:
    """Add the verbs."""
    p2p = verbs.add_parser("profile-p2p", help="bandwidths between two devices of this machine")
    p2p.add_argument("--max-data-size", type=int, default=1024, metavar="MB", help="(1024)")
    _add_repeats(p2p, warmup=20, times=50)
    p2p.set_defaults(handler=_profile_p2p)
    comm = verbs.add_parser("profile-comm", help="times of collectives between its devices")
    add = comm.add_argument
    add("--prof-tp-size", type=int, metavar="N", help="measure groups of 2, 4... up to N devices "
        "(default: all GPUs; with --device cpu, 2 processes)")  # fmt: skip
    add("--max-data-size", type=int, metavar="MB", help="the largest, of a group's devices together"
        " (default 4096; with --device cpu, 64)")  # fmt: skip
    _add_model(comm)
    _add_repeats(comm, warmup=5, times=20)
    comm.set_defaults(handler=_profile_comm)
    ops = verbs.add_parser("profile-ops", help="times and sizes of operators on this machine")
    _add_model(ops)
    add = ops.add_argument
    add("--prof-repeat-threshold", type=float, metavar="US", help="microseconds")
    add("--prof-warmup-threshold", type=float, metavar="US",
        help="microseconds from which passes that warm up count")  # fmt: skip
    _add_repeats(ops, warmup=20, times=50)
    ops.set_defaults(handler=_profile_ops)


def _add_model(parser: argparse.ArgumentParser) -> None:
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
    add("--device-memory", metavar="BYTES", help="memory that an operator may take, such as 8GiB")
    add("--fresh", action="store_true", help="measure again what is stored")
    add("--results", type=Path, default=REPOSITORY_RESULTS, metavar="DIR", help="of the store")


def _add_repeats(parser: argparse.ArgumentParser, warmup: int, times: int) -> None:
    add = parser.add_argument
    add("--prof-warmup-time", "--prof-warmup-times", type=int, default=warmup, metavar="N",
        help=f"passes before those that count ({warmup})")  # fmt: skip
    add(
        "--prof-repeat-time", "--prof-repeat-times", type=int, nargs="+", default=[times],
        metavar="N", help=f"repeats ({times}); a second number is of passes over a threshold",
    )  # fmt: skip
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
    from workbench.profile.messages import measure

    sizes = [1 << power for power in range(given.max_data_size.bit_length())]
    with _failures():
        seconds = measure(machine.device, sizes, repeats.warmup, repeats.times[0])
    speeds = [size * MB / each / 1e9 for size, each in zip(sizes, seconds, strict=True)]
    folder = user_path(given.profiled_time_path)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(str, sizes)), ",".join(f"{each:.3f}" for each in speeds)]
    write_whole(folder / "p2p_intra_node.csv", "\n".join(lines) + "\n")
    print(f"messages of up to {sizes[-1]} MB take {min(speeds):.2f} to {max(speeds):.2f} GB/s")
    return 0


def _profile_comm(given: argparse.Namespace) -> int:
    asked = _asked(given)
    repeats = Repeats(warmup=given.prof_warmup_time, times=tuple(given.prof_repeat_time))
    machine = this_machine(given.device)
    there, devices = len(gpus()) if machine.device == "cuda" else None, given.prof_tp_size
    if there == 1:
        raise ValueError("there is 1 GPU; collectives are measured between two and more: give "
                         "--device cpu, or files of another machine")  # fmt: skip
    if devices is None:
        devices = powers(2, there or 2)[-1]
    if devices not in powers(2, there or MOST_RANKS):
        told = f"one of {there} GPUs at most" if there else f"from 2 to {MOST_RANKS}"
        raise ValueError(f"--prof-tp-size is {devices}; it must be a power of two, {told}")
    size = given.max_data_size
    most = MOST_COMM_MB[machine.device] if size is None else size
    if not 1 <= most <= MOST_MB:
        raise ValueError(f"--max-data-size is {most}; it must be from 1 to {MOST_MB}")
    with _failures():
        known = collectives(
            devices, most, user_path(given.results), asked.chain.dtype, _tell,
            device=given.device, repeats=repeats, fresh=given.fresh,
        )  # fmt: skip
    for one in sorted(known.found, key=lambda one: one.setting):
        print(_line(one))
    folder = user_path(given.profiled_time_path)
    there = [v for v in asked.variants if (folder / file_of(asked.name, v)).exists()]
    if there:
        try:
            costs = shard_costs(asked.chain, there, user_path(given.results), _tell,
                                device=given.device, budget=asked.budget)  # fmt: skip
        except ValueError as error:
            print(f"times in {folder} stay without collectives: {error} with these flags")
        else:
            _write_operators(folder, asked._replace(variants=there), costs, known)
    _write_collectives(folder, asked, known)
    return 0


def _profile_ops(given: argparse.Namespace) -> int:
    asked = _asked(given)
    limits = (given.prof_repeat_threshold, given.prof_warmup_threshold)
    long_s, counts_s = (None if each is None else each * US for each in limits)
    repeats = Repeats(warmup=given.prof_warmup_time, times=tuple(given.prof_repeat_time),
                      long_s=long_s, warmup_counts_s=counts_s)  # fmt: skip
    results, folder = user_path(given.results), user_path(given.profiled_time_path)
    costs = shard_costs(
        asked.chain, asked.variants, results, _tell, device=given.device, repeats=repeats,
        budget=asked.budget, fresh=given.fresh,
    )  # fmt: skip
    known = known_collectives(results, asked.chain.dtype, _tell, device=given.device)
    _write_operators(folder, asked, costs, known)
    if known:
        _write_collectives(folder, asked, known)
    return 0


def _asked(given: argparse.Namespace) -> Asked:
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
    budget = parse_bytes(given.device_memory) if given.device_memory else None
    return Asked(subject.name, chain, variants_of(chain, samples, given.tp), budget)


def _write_operators(
    folder: Path, asked: Asked, costs: ShardCosts, known: Collectives | None
) -> None:
    exchanges = Exchanges(known)
    files = write_profiles(folder, asked.name, asked.chain, costs, asked.variants, exchanges)
    print(f"{len(files)} profiles of {asked.name}: {folder}")
    if lacking := ", ".join(map(str, sorted(exchanges.unknown))):
        print(f"times of tp {lacking} are without collectives, which were not measured among so "
              "many devices of this machine; profile-comm measures them")  # fmt: skip


def _write_collectives(folder: Path, asked: Asked, known: Collectives) -> None:
    files = write_collectives(folder, asked.name, asked.chain, asked.variants, known)
    print(f"{len(files)} files of collectives of {asked.name}: {folder}")


@contextmanager
def _failures() -> Iterator[None]:
    """A process that fails while it measures is told in its sentence."""
    try:
        yield
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _line(one: Collective) -> str:
    own, size = one.setting, one.bytes[-1]
    return (f"{own.kind} of {own.devices}, {own.stride} apart, {own.groups} at once: "
            f"{one.seconds[0] * 1e3:.3f} ms of 4 KiB, {one.seconds[-1] * 1e3:.3f} ms of "
            f"{size / MB:g} MB")  # fmt: skip


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
