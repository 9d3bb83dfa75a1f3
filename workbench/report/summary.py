"""The first ten lines of the report: what holds, what fails, the worst prediction, the machine."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pandas as pd

from workbench import __version__
from workbench.core import methods
from workbench.core.record import RunRecord, steady_step_seconds
from workbench.exhibits import find
from workbench.exhibits.base import origin
from workbench.figures.verdict import FAILS
from workbench.report.outcomes import Outcome
from workbench.report.page import Html, join, tag
from workbench.report.sections import Shown, counted, verdicts_of

TITLE = "STRONGHOLD (SC'22), Harmony (VLDB'22) and Varuna (EuroSys'22) beside their baselines"
OWN = "This project's goals"


def summary(
    size: str,
    exhibits: list[Shown],
    outcomes: dict[str, Outcome],
    records: list[RunRecord],
    where: str,
    judged: dict[str, pd.DataFrame],
) -> list[Html]:
    """Title, at most ten lines, and links to all that follows; `judged` as `verdicts` has them."""
    failing = {
        name: None
        for each in judged.values()
        for name in each[each["verdict"] == FAILS].get("exhibit", ())
    }
    failed = [f"{find(name).words}: {o.message}" for name, o in outcomes.items() if not o.ok]
    machine = origin(records, simulated=False)
    lines = {
        **{
            f"{system}, {len(each)} claims": counted(each["verdict"])
            for system, each in judged.items()
        },
        "Does not hold": _links(failing) or "none",
        "Not all exhibits ran to their end": "; ".join(failed),
        "Worst prediction": worst_prediction(records),
        "Machine": f"{machine['processor']}, {machine['memory']}, GPU: {machine['GPU']}",
        "Numbers": f"size {size}, {where}; {len(records)} runs; report of "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Workbench {__version__}",
        "Marks": "hollow published, hatched (in lines: half filled) simulated, filled measured",
    }
    told = [tag("li", tag("b", f"{name}: "), words) for name, words in lines.items() if words]
    chapters = ["tables", *(("training", "predictions") if records else ()), "provenance"]
    links = [tag("a", s.exhibit.link, href=f"#{s.name}") for s, _ in exhibits]
    links += [tag("a", name, href=f"#{name}") for name in chapters]
    return [tag("h1", TITLE), tag("ul", told, class_="summary"), tag("nav", links)]


def verdicts(exhibits: list[Shown], plans: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Verdicts of each system's exhibits by its name, and those on the plans of the runs."""
    systems: dict[str, list[Shown]] = {}
    for shown in exhibits:
        systems.setdefault(shown[0].exhibit.system or OWN, []).append(shown)
    found = {system: verdicts_of(parts) for system, parts in systems.items()}
    return found | ({"Plans": plans} if len(plans) else {})


def in_all(judged: dict[str, pd.DataFrame]) -> str:
    """Number of all claims and how many hold: ``9 claims: 7 hold, 2 do not hold``."""
    every = pd.concat([each["verdict"].astype(str) for each in judged.values()])
    return f"{len(every)} claims: {counted(every)}"


def _links(figures: Iterable[str]) -> Html:
    """Exhibits by name, each leading to its tables."""
    links = [tag("a", find(name).link, href=f"#{find(name).name}-tables") for name in figures]
    return Html("; ".join(join([link]) for link in links))


def worst_prediction(records: Iterable[RunRecord]) -> str:
    """The run whose step was furthest from what was said before it."""
    off = {}
    for record in records:
        said = record.predicted.get("step_seconds")
        if record.status == "ok" and said and record.step_seconds:
            off[record.key] = said / steady_step_seconds(record.step_seconds) - 1, record
    if not off:
        return "no run was predicted"
    share, record = max(off.values(), key=lambda each: abs(each[0]))
    label, spec = methods.find(record.method).label, record.spec
    far = f"{abs(share):.0%} {'longer' if share > 0 else 'shorter'} than measured"
    return (
        f"a step {far}, {label} with {spec['model']['layers']} layers on {spec['ranks']} "
        f"rank{'s' * (spec['ranks'] > 1)} (of {len(off)} runs that were predicted)"
        f"{record.busy and f'; {record.busy}'}"
    )
