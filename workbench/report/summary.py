"""The first ten lines of the report: what holds, what fails, the worst prediction, the machine."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pandas as pd

from workbench import __version__
from workbench.core import methods
from workbench.core.record import RunRecord, steady_step_seconds
from workbench.exhibits import find
from workbench.exhibits.provenance import origin
from workbench.report.outcomes import Outcome
from workbench.report.page import Html, join, tag
from workbench.report.sections import HERE, KINDS, Shown, counted, failing, verdicts_of

TITLE = (
    "STRONGHOLD (SC'22), Harmony (VLDB'22), Varuna (EuroSys'22) and FTPipe (ATC'21) beside their "
    "baselines"
)
OWN = "This project's goals"


def summary(
    size: str,
    exhibits: list[Shown],
    outcomes: dict[str, Outcome],
    records: list[RunRecord],
    where: str,
    judged: dict[str, pd.DataFrame],
) -> list[Html]:
    """Title, at most ten lines, links to all that follows, and the claims that do not hold;
    `judged` as `verdicts` has them."""
    failed = [f"{find(name).words}: {o.message}" for name, o in outcomes.items() if not o.ok]
    machine = origin(records, simulated=False)
    lines = {
        **by_kind(judged),
        "By subject": "; ".join(
            f"{system}, {len(each)}: {counted(each['verdict'])}" for system, each in judged.items()
        ),
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
    first = [tag("h1", TITLE), tag("ul", told, class_="summary"), tag("nav", links)]
    lacking = failing(pd.concat(judged.values()), _link)
    return [*first, tag("h2", "Does not hold", id="fails"), lacking] if lacking else first


def verdicts(exhibits: list[Shown], plans: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Verdicts (`verdicts_of`) of each system's exhibits by its name, and those on the plans."""
    systems: dict[str, list[Shown]] = {}
    for shown in exhibits:
        systems.setdefault(shown[0].exhibit.system or OWN, []).append(shown)
    found = {system: verdicts_of(parts) for system, parts in systems.items()}
    return found | ({"Plans": plans.assign(exhibit="", kind=HERE)} if len(plans) else {})


def by_kind(judged: dict[str, pd.DataFrame]) -> dict[str, str]:
    """How many claims hold of each kind of numbers: ``{"simulated, 9 claims": "7 hold, ..."}``."""
    every = pd.concat(judged.values())
    parts = {kind: every[every["kind"] == kind]["verdict"] for kind in KINDS}
    return {f"{kind}, {len(part)} claims": counted(part) for kind, part in parts.items()}


def _link(figure: str) -> Html:
    """An exhibit by name, leading to it; to the plans where it has none."""
    name, words = (find(figure).name, find(figure).link) if figure else ("predictions", "plans")
    return join([tag("a", words, href=f"#{name}"), ": "])


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
