"""``workbench partition``: stages of an operator graph, and the device of each.

The graph is a file's, or a model's, whose partition is registered (partition_task.py). The flags
are those of the published compiler, with dashes or underscores; one that is not read is refused.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from math import isfinite
from pathlib import Path
from typing import Any

from workbench.cli.partition_table import lines_of, table_of
from workbench.cli.partition_task import KEEPS, TASKS, add_task_flags, register, task_flags
from workbench.cli.spec import Parser
from workbench.core.bytesize import format_bytes, parse_bytes
from workbench.core.jsonfile import parse_json
from workbench.core.paths import user_path
from workbench.core.schema import docstrings, read_as
from workbench.partition.graph import read_graph
from workbench.partition.methods import METHODS, Ask, Partition, partition
from workbench.partition.registered import Registered, known, read
from workbench.runs.store import REPOSITORY_RESULTS, Store

PRESETS: dict[str, dict[str, Any]] = {
    "ftpipe": {"cheap_last": True},
    "pipedream": {"cheap_last": False},
    "gpipe": {"ratio": None},
}
"""Preset -> what it asks for."""
SEVERAL = ("L", "special_blocks")
"""Settings of several values."""
GONE = {
    "allocated_seconds": "no clock decides here: --rounds says how long acyclic searches",
    "multilevel": "acyclic starts from cuts of random orders alone",
    "metis_nseps": "METIS reads it for separators, and never did for parts",
    "weight_mult_factor": "times are numbers of any size here",
    "edge_penalty": "an edge says by itself whether it is sendable",
}
"""Flag of the published compiler -> why there is none."""


def main(words: Sequence[str]) -> int:
    """Partition, and print. Raises ValueError for input that is wrong."""
    given = vars(_parser().parse_args(words))
    task, graph_file = given.pop("task"), given.pop("graph")
    as_json, listed = given.pop("json"), given.pop("list")
    store = Store(given.pop("results", REPOSITORY_RESULTS))
    if [task is not None, graph_file is not None, listed].count(True) != 1:
        raise ValueError("give a task, or --graph FILE, or --list; see workbench partition --help")
    if listed:
        return _list(store, given, as_json)
    for name, why in GONE.items():
        if given.pop(name, None) is not None:
            raise ValueError(f"--{name} has no meaning: {why}")
    own = {name: given.pop(name) for name in task_flags() & given.keys()}
    if graph_file is not None:
        for name in sorted(own):
            raise ValueError(f"--{name} has no meaning for a graph; it is for a task")
        ask = _ask(given)
        found = partition(read_graph(user_path(graph_file)), ask, _settings(ask.method, given))
        print(json.dumps(asdict(found), indent=1) if as_json else "\n".join(_lines(found)))
        return 0
    if KEEPS not in own and "preset" not in given:
        given["async_pipeline"] = True
    ask = _ask(given)
    made, run = register(task, own, ask, _settings(ask.method, given), store)
    if as_json:
        print(json.dumps(made.to_dict(), indent=1))
    else:
        print("\n".join([*lines_of(made), *([f"train it: {shlex.join(run)}"] if run else [])]))
    return 0


def _list(store: Store, given: dict[str, Any], as_json: bool) -> int:
    for name in sorted(given):
        raise ValueError(f"--{name} has no meaning for --list")
    found = {name: _read(store, name) for name in known(store.root)}
    if as_json:
        told = {n: one if isinstance(one, str) else one.to_dict() for n, one in found.items()}
        print(json.dumps(told, indent=1))
    else:
        print("\n".join(table_of(found)) or "none; workbench partition TASK makes one")
    return 0


def _read(store: Store, name: str) -> Registered | str:
    """A partition, or why it cannot be read."""
    try:
        return read(store.root, name)
    except ValueError as error:
        return str(error)


def _parser() -> Parser:
    parser = Parser(prog="workbench partition", description="Partition a model, or a graph.")

    def add(name: str, *short: str, **options: Any) -> None:
        dashed = [f"--{name.replace('_', '-')}"] if "_" in name else []
        options.setdefault("default", argparse.SUPPRESS)
        parser.add_argument(*short, f"--{name}", *dashed, dest=name, **options)

    told = "JSON: nodes {id, forward_ms, backward_ms, bytes}, edges {from, to, bytes}"
    names = f"{', '.join(TASKS)}, or package.module:function, which makes a module"
    parser.add_argument("task", nargs="?", metavar="TASK", help=names)
    add("graph", type=Path, default=None, metavar="FILE", help=told)
    add("list", action="store_true", default=False, help="partitions that are registered")
    add("json", action="store_true", default=False, help="print JSON, and nothing else")
    add_task_flags(add)
    add("n_partitions", "-p", "-P", type=int, metavar="P", help="devices (default 4)")
    known = ", ".join(METHODS)
    add("partitioning_method", "-m", metavar="METHOD", help=f"{known} (default acyclic)")
    add("preset", metavar="PRESET", help=f"{', '.join(PRESETS)}: what a schedule asks for")
    add("memory", metavar="BYTES", help="memory of a device, such as 11GB (default: any)")
    add("bw", type=float, metavar="GB/S", help="bandwidth between devices (default 12)")
    told = "micro-batches of an update: memory counts inputs in flight (default: none)"
    add("in_flight", type=int, metavar="K", help=told)
    add("versions", action="store_true", help="memory counts the weights that stages stash")
    add("seed", type=int, metavar="S", help="of all that is drawn (default 0)")
    ratio = "weight of backward times (default 1; negative: these alone)"
    add("bwd_to_fwd_ratio", type=float, metavar="R", help=ratio)
    add("auto_infer_node_bwd_to_fwd_ratio", action="store_true", help="each node's own ratio")
    add("async_pipeline", "-a", action="store_true", help="the last stage does not recompute")
    add("dont_use_async_meta_alg", action="store_true", help="it costs what the others do")
    for name in GONE:
        add(name, nargs="?", const="", help=argparse.SUPPRESS)
    for method, row in METHODS.items():
        about = docstrings(row.settings)
        for field in fields(row.settings):
            options: dict[str, Any] = {"nargs": "+"} if field.name in SEVERAL else {}
            if field.default is False:
                options["action"] = "store_true"
            else:
                options["metavar"] = field.name.rpartition("_")[2].upper()
            add(field.name, help=f"{method}: {about[field.name]}".replace("%", "%%"), **options)
    return parser


def _ask(given: dict[str, Any]) -> Ask:
    """What the flags ask of any method; takes them out."""
    preset = given.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; known: {', '.join(PRESETS)}")
    asked = dict(PRESETS.get(preset, {}))
    for flag, name in (
        ("partitioning_method", "method"), ("n_partitions", "devices"), ("bw", "bandwidth"),
        ("seed", "seed"), ("bwd_to_fwd_ratio", "ratio"), ("async_pipeline", "cheap_last"),
        ("in_flight", "in_flight"), ("versions", "versions"),
    ):  # fmt: skip
        if flag in given:
            asked[name] = given.pop(flag)
    if given.pop("auto_infer_node_bwd_to_fwd_ratio", False):
        asked["ratio"] = None
    if given.pop("dont_use_async_meta_alg", False):
        if not asked.get("cheap_last"):
            raise ValueError("--dont_use_async_meta_alg has no meaning without --async_pipeline")
        asked["cheap_last"] = False
    if "memory" in given:
        asked["memory"] = parse_bytes(given.pop("memory"))
    ask = Ask(**asked)
    if not 0 < ask.bandwidth < float("inf"):
        raise ValueError(f"--bw is {ask.bandwidth}; it must be a number of GB/s over 0")
    if ask.ratio is not None and not isfinite(ask.ratio):
        raise ValueError(f"--bwd_to_fwd_ratio is {ask.ratio}; it must be a finite number")
    if ask.method not in METHODS:
        raise ValueError(f"unknown method {ask.method!r}; known: {', '.join(METHODS)}")
    return ask


def _settings(method: str, given: dict[str, Any]) -> Any:
    """The method's own settings, of the flags that are left."""
    kind = METHODS[method].settings
    own = {field.name for field in fields(kind)}
    for name in given.keys() - own:
        owners = ", ".join(
            each for each, row in METHODS.items() if name in {f.name for f in fields(row.settings)}
        )
        raise ValueError(f"--{name} has no meaning for {method}; it is for {owners}")
    values = {name: _values(name, value) for name, value in given.items()}
    return read_as(kind, values, "")


def _values(name: str, given: Any) -> Any:
    if isinstance(given, list):
        return [_values(name, each) for each in given]
    try:
        return parse_json(given, name) if isinstance(given, str) else given
    except ValueError:
        return given


def _lines(found: Partition) -> list[str]:
    """A line a stage, one a device, and the objective."""
    sizes = Counter(found.stage.values())
    lines = [
        f"stage {stage}: device {device}, {sizes[stage]} nodes"
        for stage, device in enumerate(found.stage_to_device)
    ]
    for device, (load, held) in enumerate(zip(found.loads_ms, found.memory_bytes, strict=True)):
        lines.append(f"device {device}: {load:.6g} ms, {format_bytes(held)}")
    return [
        *lines,
        f"slowest stage {found.objective_ms:.6g} ms, at least {found.bound_ms:.6g} ms on any "
        f"{len(found.loads_ms)} devices ({found.gap:.2%} over)",
    ]
