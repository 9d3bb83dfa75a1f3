"""Flags that several verbs share: the model, the devices, the plans that come out."""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.plan import subject_of
from workbench.methods.aceso.space import Cluster
from workbench.published.aceso import DATABASE
from workbench.runs.store import REPOSITORY_RESULTS

SIZES = {"gpt": "1_3B", "t5": "770M", "resnet": "1B", "scale-layer": "scale-layer"}
"""The sizes of the committed database, and of models of any depth."""
COSTS = ("published", "ours")
BATCHES = {"resnet": 768, "scale-layer": 1024}
"""Of the published small settings, and of the one of any depth; others have 512."""


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Flags of devices and their profiles."""
    add = parser.add_argument
    told = "folder of profiles, CSV files as the artifact has them (default: its small ones)"
    add("--profiled-time-path", type=Path, default=DATABASE, metavar="DIR", help=told)
    add("--num-nodes", type=int, default=1, metavar="N", help="nodes (default 1)")
    add("--num-gpus-per-node", type=int, default=4, metavar="N", help="GPUs of a node (default 4)")
    add("--cost", choices=COSTS, default="published",
        help="the cost model: the published one (default), or with what it leaves out")  # fmt: skip
    add("--json", action="store_true", help="print JSON, and nothing else")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Flags of a model and of its memory."""
    add = parser.add_argument
    add("--model-name", choices=tuple(SIZES), default="gpt", help="model (default gpt)")
    add(
        "--model-size",
        metavar="SIZE",
        help="size, such as 1_3B, or tiny (default: of the small profiles)",
    )
    add("--num-layers", type=int, metavar="L", help="layers, where they are not the size's")
    add("--global-batch-size", type=int, metavar="B", help="samples of an iteration")
    micro = "samples of micro-batches to try (default 1 2 4 8; resnet 16 32 48 64)"
    add("--micro-batch-size", type=int, nargs="+", default=[], metavar="M", help=micro)
    add("--seq-len", type=int, metavar="S", help="tokens of a sample (default 2048)")
    add("--hidden", type=int, metavar="H", help="width, where it is not the size's")
    add("--heads", type=int, metavar="A", help="attention heads, where they are not the size's")
    add("--decoder-seq-len", type=int, metavar="S", help="tokens of an answer (default 512)")
    add("--max-tp", type=int, default=0, metavar="TP", help="largest tp (default: a node's GPUs)")
    add("--memory-limit", type=float, default=28000, metavar="MB",
        help="memory of a GPU, of 2^20 bytes (default 28000)")  # fmt: skip


def add_outcome(parser: argparse.ArgumentParser) -> None:
    """Flags of numbers of stages and of files of plans."""
    add = parser.add_argument
    add("--start-num-stages", type=int, metavar="S", help="fewest stages (default 1)")
    add("--end-num-stages", type=int, metavar="S", help="most (default: GPUs, 16 at most)")
    folder = REPOSITORY_RESULTS / "aceso" / "plans"
    add("--config-save-path", type=Path, default=folder, metavar="DIR", help="folder of plans")
    add("--num-of-saved-configs", type=int, default=1, metavar="N", help="plans (default 1)")


def cluster_of(given: argparse.Namespace, memory: float) -> Cluster:
    """Devices of so many MB."""
    return Cluster(nodes=given.num_nodes, per_node=given.num_gpus_per_node, memory=memory)


def ask_of(given: argparse.Namespace) -> Ask:
    """The model and the cluster of a search's flags. Raises ValueError."""
    if (plans := given.num_of_saved_configs) < 1:
        raise ValueError(f"--num-of-saved-configs is {plans}; it must be 1 or more")
    name = given.model_name
    batch = BATCHES.get(name, 512) if given.global_batch_size is None else given.global_batch_size
    subject = subject_of(
        name, given.model_size or SIZES[name], batch,
        layers=given.num_layers, seq=given.seq_len, target_seq=given.decoder_seq_len,
        hidden=given.hidden, heads=given.heads,
    )  # fmt: skip
    return Ask(
        subject=subject, cluster=cluster_of(given, given.memory_limit), most_tp=given.max_tp,
        database=given.profiled_time_path, micros=tuple(given.micro_batch_size),
        margin=getattr(given, "peak_mem_in_backward", 0.0), cost=given.cost,
    )  # fmt: skip
