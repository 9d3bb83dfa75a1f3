"""``workbench aceso cost | search | megatron | alpa``: what a plan of tp, dp, stages and
recomputation costs by a profile database, the best one, and the best of simpler kinds.

Flags are those of Aceso's artifact (EuroSys'24); one that has no meaning here is refused, and says
why. Exit codes: 0 done; 2 the input is wrong, or nothing fits; 130 interrupted, after the best plan
so far was printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.cli.spec import Parser
from workbench.core.files import replacing
from workbench.core.paths import user_path
from workbench.methods.aceso.alpa import layered
from workbench.methods.aceso.ask import Ask, check_plan
from workbench.methods.aceso.bound import least_time
from workbench.methods.aceso.grid import grid
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.plan import load_plan, subject_of
from workbench.methods.aceso.search import Effort, Found
from workbench.methods.aceso.searches import Outcome, file_name, search
from workbench.methods.aceso.show import cost_dict, cost_lines, search_lines
from workbench.methods.aceso.space import Cluster
from workbench.published.aceso import DATABASE
from workbench.runs.store import REPOSITORY_RESULTS

SIZES = {"gpt": "1_3B", "t5": "770M", "resnet": "1B", "scale-layer": "scale-layer"}
"""The sizes of the committed database, and of models of any depth."""
BATCHES = {"resnet": 768, "scale-layer": 1024}
"""Of the published small settings, and of the one of any depth; others have 512."""
STARTS = ("balance", "imbalance_gpu", "imbalance_op")
GONE = {
    "log-path": "what a search did is printed, and in --json",
    "config-suffix": "the published search overwrites it",
    "op-group-size": "operators are moved one by one",
    "time-budget-per-trial": "--time-budget-total ends a search inside a trial, too",
    "num-algos": "the partitions are those that the model was published with",
    "memory-pred-type": "reserved memory is always the largest",
    "random-order-actions": "it ends the published search, too",
    "predict-delta-time": "a stage costs as little as its difference",
    "no-multi-process": "one process searches all numbers of stages",
}
"""Flag of the published search -> why there is none."""
COMPARATORS = {
    "megatron": ("the best plan of a uniform grid", grid),
    "alpa": ("the best plan of whole layers, all recomputed or none", layered),
}
SEARCHES = {"faithful": search, "ours": search_ours}
INTERRUPTED = 130


def main(words: Sequence[str]) -> int:
    """Returns the exit code. Raises ValueError for a user's mistake."""
    parser = Parser(prog="workbench aceso", description="Plan and rate tp, dp, stages and "
                    "recomputation of every operator.")  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    cost = verbs.add_parser("cost", help="time and memory of a plan, stage by stage")
    cost.add_argument("plan", type=Path, metavar="PLAN", help="JSON file of a plan")
    _add_cluster(cost)
    cost.set_defaults(handler=_cost)
    searching = verbs.add_parser("search", help="the fastest plan that fits")
    _add_search(searching)
    searching.set_defaults(handler=_search)
    verbs_of = {"search": searching}
    for name, (told, find) in COMPARATORS.items():
        verbs_of[name] = verbs.add_parser(name, help=told)
        verbs_of[name].set_defaults(handler=_compare, find=find)
    for verb in verbs_of.values():
        _add_model(verb)
        _add_cluster(verb)
        _add_outcome(verb)
    given = parser.parse_args(words)
    return given.handler(given)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    told = "folder of profiles, CSV files as the artifact has them (default: its small ones)"
    add("--profiled-time-path", type=Path, default=DATABASE, metavar="DIR", help=told)
    add("--num-nodes", type=int, default=1, metavar="N", help="nodes (default 1)")
    add("--num-gpus-per-node", type=int, default=4, metavar="N", help="GPUs of a node (default 4)")
    add("--cost", choices=("published",), default="published", help="the cost model")
    add("--json", action="store_true", help="print JSON, and nothing else")


def _add_model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model-name", choices=tuple(SIZES), default="gpt", help="model (default gpt)")
    add("--model-size", metavar="SIZE", help="size, such as 1_3B (default: of the small profiles)")
    add("--num-layers", type=int, metavar="L", help="layers, where they are not the size's")
    add("--global-batch-size", type=int, metavar="B", help="samples of an iteration")
    micro = "samples of micro-batches to try (default 1 2 4 8; resnet 16 32 48 64)"
    add("--micro-batch-size", type=int, nargs="+", default=[], metavar="M", help=micro)
    add("--seq-len", type=int, metavar="S", help="tokens of a sample (default 2048)")
    add("--decoder-seq-len", type=int, metavar="S", help="tokens of an answer (default 512)")
    add("--max-tp", type=int, default=0, metavar="TP", help="largest tp (default: a node's GPUs)")
    add("--memory-limit", type=float, default=28000, metavar="MB",
        help="memory of a GPU, of 2^20 bytes (default 28000)")  # fmt: skip


def _add_outcome(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--start-num-stages", type=int, metavar="S", help="fewest stages (default 1)")
    add("--end-num-stages", type=int, metavar="S", help="most (default: GPUs, 16 at most)")
    folder = REPOSITORY_RESULTS / "aceso" / "plans"
    add("--config-save-path", type=Path, default=folder, metavar="DIR", help="folder of plans")
    add("--num-of-saved-configs", type=int, default=1, metavar="N", help="plans (default 1)")


def _add_search(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--mode", choices=tuple(SEARCHES), default="faithful",
        help="faithful: the published search (default); ours: better plans")  # fmt: skip
    add("--max-num-hops", type=int, default=Effort.hops, metavar="H",
        help=f"moves in a row (default {Effort.hops})")  # fmt: skip
    add("--max-num-trials", type=int, default=Effort.trials, metavar="T",
        help=f"trials (default {Effort.trials})")  # fmt: skip
    add("--max-num-plans", type=int, default=Effort.plans, metavar="N",
        help=f"plans to rate, for each number of stages (default {Effort.plans})")  # fmt: skip
    add("--time-budget-total", type=float, default=Effort.seconds, metavar="S",
        help=f"seconds, for each number of stages (default {Effort.seconds:g})")  # fmt: skip
    add("--initial-point", default=STARTS[0], metavar="POINT",
        help=f"{', '.join(STARTS)}, or a plan's file, to go on from")  # fmt: skip
    add("--init-dim", choices=("tp", "dp"), default="tp", help="what GPUs of a stage begin with")
    add("--finetune-after-trial", type=int, choices=(0, 1), metavar="0|1",
        help="change tp, dp, partition inside stages, too (default 1 for resnet)")  # fmt: skip
    add("--peak-mem-in-backward", type=float, default=0, metavar="MB",
        help="memory that recomputation leaves free (default 0)")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of draws; no search makes any")
    for name in GONE:
        add(f"--{name}", nargs="*", help=argparse.SUPPRESS)


def _cost(given: argparse.Namespace) -> int:
    plan = load_plan(user_path(given.plan))
    cluster = _cluster(given, memory=1.0)
    costs = Ask(subject=plan.subject, cluster=cluster, database=given.profiled_time_path).costs()
    try:
        check_plan(plan, costs, cluster)
    except ValueError as error:
        raise ValueError(f"the plan {given.plan}: {error}") from None
    cost = costs.plan(plan)
    if given.json:
        print(json.dumps(cost_dict(plan, cost), indent=1))
    else:
        print("\n".join(cost_lines(plan, cost)))
    return 0


def _cluster(given: argparse.Namespace, memory: float) -> Cluster:
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
    )  # fmt: skip
    return Ask(
        subject=subject, cluster=_cluster(given, given.memory_limit), most_tp=given.max_tp,
        database=given.profiled_time_path, micros=tuple(given.micro_batch_size),
        margin=getattr(given, "peak_mem_in_backward", 0.0),
    )  # fmt: skip


def _search(given: argparse.Namespace) -> int:
    for name, why in GONE.items():
        if getattr(given, name.replace("-", "_")) is not None:
            raise ValueError(f"--{name} has no meaning: {why}")
    for name in ("max_num_hops", "max_num_trials", "max_num_plans"):
        if (value := getattr(given, name)) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be 1 or more")
    if not 0 < given.time_budget_total < 1e9:
        raise ValueError(f"--time-budget-total is {given.time_budget_total:g}; it must be seconds, "
                         "over 0")  # fmt: skip
    ask = ask_of(given)
    first = None
    if given.initial_point not in STARTS:
        first = load_plan(user_path(given.initial_point))
        if first.subject != ask.subject:
            unlike = ask.subject.unlike(first.subject)
            if first.subject.name != ask.subject.name:
                unlike = f"its model is {first.subject.name}; it must be {ask.subject.name}"
            raise ValueError(f"--initial-point is a plan of another model or batch: {unlike}")
    counts, outcome = ask.stages(given.start_num_stages, given.end_num_stages), None
    space = ask.space()
    outcome = Outcome(space=space, bound=least_time(space))
    if first is not None:
        check_plan(first, outcome.space.costs, ask.cluster)
    effort = Effort(hops=given.max_num_hops, trials=given.max_num_trials,
                    plans=given.max_num_plans, seconds=given.time_budget_total)  # fmt: skip
    tunes = given.finetune_after_trial
    try:
        SEARCHES[given.mode](
            outcome, counts, effort, wide=given.init_dim, first=first, watch=_Progress(),
            start=given.initial_point if first is None else STARTS[0],
            finetunes=ask.subject.model == "resnet" if tunes is None else bool(tunes),
        )  # fmt: skip
    except KeyboardInterrupt:
        print("interrupted; the best plan so far:", file=sys.stderr)
    return tell(outcome, given)


def _compare(given: argparse.Namespace) -> int:
    ask = ask_of(given)
    outcome = given.find(ask.space(), ask.stages(given.start_num_stages, given.end_num_stages))
    return tell(outcome, given)


class _Progress:
    """Tells of each better plan, where people look."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()

    def __call__(self, count: int, found: Found) -> None:
        if self.shown:
            print(f"{count} stages, {found.explored} plans rated: {found.best.cost.time:,.2f} ms",
                  file=sys.stderr)  # fmt: skip


def tell(outcome: Outcome, given: argparse.Namespace) -> int:
    """Print what was found and save its plans. Returns the exit code."""
    code = 0 if outcome.whole else INTERRUPTED
    best = outcome.best
    if best is None:
        if not outcome.whole:
            return code
        raise ValueError(f"no number of stages lets {outcome.space.cluster.gpus} GPUs be dealt in "
                         f"powers of two, up to tp {outcome.space.most_tp}")  # fmt: skip
    if not outcome.fits and outcome.whole:
        limit, need = outcome.space.cluster.memory, best.cost.memory
        raise ValueError(f"nothing fits in {limit:,.0f} MB a GPU: the nearest plan, of "
                         f"{len(best.plan.stages)} stages, takes {need:,.0f} MB, "
                         f"{need - limit:,.0f} more")  # fmt: skip
    files = _saved(outcome, given) if outcome.fits else []
    if given.json:
        told: dict[str, Any] = outcome.to_dict()
        print(json.dumps({**told, "plan": str(files[0]) if files else None}, indent=1))
        return code
    lines = [*search_lines(outcome), *cost_lines(*best)]
    if outcome.fits and outcome.bound:
        lines.append(f"no plan takes less than {outcome.bound:,.2f} ms: this one takes at most "
                     f"{best.cost.time / outcome.bound - 1:.1%} more than the best")  # fmt: skip
    print("\n".join(lines))
    for path in files:
        print(f"plan: {path}")
    return code


def _saved(outcome: Outcome, given: argparse.Namespace) -> list[Path]:
    folder = user_path(given.config_save_path)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for rated in outcome.ranked()[: given.num_of_saved_configs]:
        path = folder / file_name(rated.plan)
        with replacing(path) as part:
            part.write_text(rated.plan.to_json())
        files.append(path)
    return files
