"""``workbench aceso cost``: time and memory of a plan, stage by stage."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from workbench.cli.aceso.asked import add_cluster, cluster_of
from workbench.core.paths import user_path
from workbench.methods.aceso.ask import Ask, check_plan
from workbench.methods.aceso.outputs import save_info
from workbench.methods.aceso.plan import load_plan
from workbench.methods.aceso.show import cost_dict, cost_lines


def add(verbs: Any) -> None:
    """Add the verb."""
    cost = verbs.add_parser("cost", help="time and memory of a plan, stage by stage")
    cost.add_argument("plan", type=Path, metavar="PLAN", help="JSON file of a plan")
    cost.add_argument("--save-to-csv", type=Path, metavar="FILE", help="also write a row a stage")
    add_cluster(cost)
    cost.set_defaults(handler=_cost)


def _cost(given: argparse.Namespace) -> int:
    plan = load_plan(user_path(given.plan))
    cluster = cluster_of(given, memory=1.0)
    costs = Ask(
        subject=plan.subject, cluster=cluster, database=given.profiled_time_path, cost=given.cost
    ).costs()
    try:
        check_plan(plan, costs, cluster)
    except ValueError as error:
        raise ValueError(f"the plan {given.plan}: {error}") from None
    cost = costs.plan(plan)
    if given.save_to_csv:
        save_info(plan, cost, user_path(given.save_to_csv))
    if given.json:
        print(json.dumps(cost_dict(plan, cost), indent=1))
    else:
        print("\n".join(cost_lines(plan, cost)))
    return 0
