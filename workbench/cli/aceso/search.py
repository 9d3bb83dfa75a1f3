"""``workbench aceso search | megatron | alpa``: the best plan, and the best of simpler kinds."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from workbench.cli.aceso.asked import add_cluster, add_model, add_outcome, ask_of
from workbench.core.files import replacing
from workbench.core.paths import user_path
from workbench.methods.aceso.alpa import layered
from workbench.methods.aceso.ask import check_plan
from workbench.methods.aceso.bottleneck import Shuffled, groups
from workbench.methods.aceso.bound import least_time
from workbench.methods.aceso.grid import grid
from workbench.methods.aceso.ours import search_ours
from workbench.methods.aceso.outputs import save_search
from workbench.methods.aceso.plan import load_plan
from workbench.methods.aceso.search import Effort, Found
from workbench.methods.aceso.searches import Outcome, file_name, search
from workbench.methods.aceso.show import cost_lines, search_lines

STARTS = ("balance", "imbalance_gpu", "imbalance_op")
GONE = {
    "config-suffix": "the published search overwrites it",
    "op-group-size": "operators are moved one by one",
    "time-budget-per-trial": "--time-budget-total ends a search inside a trial, too",
    "num-algos": "the partitions are those that the model was published with",
    "memory-pred-type": "reserved memory is always the largest",
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


def add(verbs: Any) -> None:
    """Add the verbs."""
    searching = verbs.add_parser("search", help="the fastest plan that fits")
    _add_search(searching)
    searching.set_defaults(handler=_search)
    verbs_of = {"search": searching}
    for name, (told, find) in COMPARATORS.items():
        verbs_of[name] = verbs.add_parser(name, help=told)
        verbs_of[name].set_defaults(handler=_compare, find=find)
    for verb in verbs_of.values():
        add_model(verb)
        add_cluster(verb)
        add_outcome(verb)


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
    add("--log-path", type=Path, metavar="DIR", help="folder for CSV files of how the search went")
    add("--random-order-actions", action="store_true",
        help="try moves one by one in random order, not by what is scarce")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N",
        help="of --random-order-actions, the only draws of a search (default 0)")  # fmt: skip
    for name in GONE:
        add(f"--{name}", nargs="*", help=argparse.SUPPRESS)


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
            order=Shuffled(given.seed) if given.random_order_actions else groups,
            finetunes=ask.subject.model == "resnet" if tunes is None else bool(tunes),
        )  # fmt: skip
    except KeyboardInterrupt:
        print("interrupted; the best plan so far:", file=sys.stderr)
    code = tell(outcome, given)
    if given.log_path:
        start = Path(given.initial_point).stem
        save_search(outcome, user_path(given.log_path), effort, start)
    return code


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
    best = outcome.chosen() if outcome.whole else outcome.best
    if best is None:
        return code
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
