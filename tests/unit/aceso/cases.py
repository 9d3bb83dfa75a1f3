"""The published small settings, which tests of plans, costs and searches share."""

from __future__ import annotations

from functools import cache

from workbench.methods.aceso.ask import Ask
from workbench.methods.aceso.costs import Costs
from workbench.methods.aceso.files import read_table
from workbench.methods.aceso.plan import Plan, read_plan, subject_of
from workbench.methods.aceso.space import Cluster, Space
from workbench.published.aceso import DATABASE, PLANS

SMALL = {"gpt": ("1_3B", 512), "t5": ("770M", 512), "resnet": ("1B", 768)}


def golden() -> dict[str, str]:
    """Texts of the published plans by the name of their configuration."""
    return {name.removesuffix(".json"): text for name, text in read_table(PLANS).items()}


def golden_plan(name: str) -> Plan:
    return read_plan(golden()[name], name)


@cache
def costs_of(model: str) -> Costs:
    return small_ask(model).costs()


def small_ask(
    model: str, memory: float = 12000, batch: int | None = None, cost: str = "published"
) -> Ask:
    size, usual = SMALL[model]
    return Ask(
        subject=subject_of(model, size, batch or usual), database=DATABASE,
        cluster=Cluster(nodes=1, per_node=4, memory=memory), cost=cost,
    )  # fmt: skip


def small_space(model: str, memory: float = 12000, cost: str = "published") -> Space:
    return small_ask(model, memory, cost=cost).space()
