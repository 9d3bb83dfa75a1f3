"""``workbench aceso small | large | scale``: a published setting from profiles to tables.

Plans are searched for by four ways and rated by one cost model; in the small setting the published
plan of GPT also trains, as the exhibit ``aceso_small`` does, whose figure is drawn. Tables have the
columns of the artifact's, and times are in the milliseconds that its numbers are in.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from workbench.cli.spec import add_results_flag
from workbench.core.aligned import aligned
from workbench.core.paths import user_path
from workbench.exhibits import open_exhibit
from workbench.exhibits.aceso.found import (
    ACTUAL,
    COST,
    EXTRA,
    FOLDER,
    MEMORY,
    NORMAL,
    PREDICTED,
    RATE,
    TIME,
    found_rows,
)
from workbench.methods.aceso.outputs import MISSING, save_plans, save_search, save_table
from workbench.methods.aceso.search import Effort
from workbench.methods.aceso.settings import SETS, WAYS, Interrupted, Setting, searched
from workbench.published.aceso import DATABASE
from workbench.runs.store import Store

TOLD = {
    "small": "GPT 1.3B, T5 770M, Wide-ResNet 1B on 4 GPUs: search, train, compare",
    "large": "five sizes of three models on up to 32 GPUs: search, compare",
    "scale": "GPT of 8 to 1,024 layers on 8 GPUs: search, compare",
}
SIZES = {"smoke": 400, "small": Effort.plans, "paper": Effort.plans}
"""Size -> plans that a search rates at most, for each number of stages."""
SAVED = 3
"""Plans of a search in ``top_configs``, each of another number of stages."""
NAMES = {"Megatron-LM": "megatron", "Alpa": "alpa", "Aceso": "aceso", "our search": "ours",
         ACTUAL: "actual"}  # fmt: skip
"""Label of rows -> name in tables."""


class Table(NamedTuple):
    """A table of the artifact's."""

    title: str
    file: str
    """Stem of its file, before the names of the setting and of the model."""
    quantity: str
    series: tuple[str, ...]


TABLES = (
    Table("End-to-end Throughput (samples/s)", "e2e_thpt", RATE, WAYS),
    Table("Search Cost (s)", "search_cost", COST, ("alpa", "aceso", "ours")),
    Table("Time Prediction (ms)", "perf_model_time", TIME, ("actual", PREDICTED)),
    Table("Memory Prediction (normal + extra) (MB)", "perf_model_mem", MEMORY,
          ("actual", NORMAL, EXTRA)),
)  # fmt: skip
Values = dict[str, dict[str, float]]
"""Series -> column -> value."""


def add(verbs: Any) -> None:
    """Add the verbs."""
    for name, words in TOLD.items():
        verb = verbs.add_parser(name, help=words)
        verb.add_argument("--size", choices=tuple(SIZES), default="smoke",
                          help="how long searches may be, and how wide a model is that trains "
                          "(default smoke: any machine)")  # fmt: skip
        verb.add_argument("--model-name", nargs="+", choices=sorted({s.model for s in SETS[name]}),
                          metavar="MODEL", help="models of tables (default: all)")  # fmt: skip
        verb.add_argument("--profiled-time-path", type=Path, metavar="DIR",
                          help="folder of profiles, CSV files as the artifact has them (default: "
                          "its small ones, for small)")  # fmt: skip
        add_results_flag(verb)
        verb.set_defaults(handler=partial(_run, name))


def _run(name: str, given: argparse.Namespace) -> int:
    store, database, models = Store(given.results), given.profiled_time_path, given.model_name
    if database is None and name != "small":
        raise ValueError(f"--profiled-time-path is missing: profiles of the {name} setting do not "
                         "come with this package; give the artifact's folder, or one of your own "
                         "profiles")  # fmt: skip
    rows: list[dict[str, Any]] = []
    if database is None:
        database = DATABASE
        session = open_exhibit("aceso_small", given.size, store.root)
        shown = session.run()
        rows = shown[shown["label"] == ACTUAL].to_dict("records")
        print(f"figure: {session.figure(shown).paths[1]}", flush=True)
    database = user_path(database)
    settings = [each for each in SETS[name] if not models or each.model in models]
    effort, out = Effort(plans=SIZES[given.size]), store.root / FOLDER / name
    there = [each for each in settings if _search(each, database, effort, out)]
    if not there:
        raise ValueError(f"{database} has no profiles of the {name} setting's models; "
                         "--profiled-time-path must name a folder that has")  # fmt: skip
    rows += found_rows(there, database, effort, out.parent)
    for model in dict.fromkeys(setting.model for setting in there):
        columns = [each.column for each in settings if each.model == model]
        _print(model, columns, [row for row in rows if row["pair"].split()[0] == model], out)
    print(f"plans, trends and tables: {out}")
    return 0


def _search(setting: Setting, database: Path, effort: Effort, out: Path) -> bool:
    """Find plans in all ways, and write files as the artifact lays them out. Returns whether the
    database has the model."""
    name = f"{setting.model} {setting.column}"
    for way in setting.ways:
        try:
            outcome = searched(setting, way, database, effort, out.parent)
        except ValueError as error:
            print(f"{name} is not searched: {error}", flush=True)
            return False
        except Interrupted as interrupted:
            best = interrupted.outcome
            told = f"{best.best.cost.time:,.2f} ms" if best.fits else "none that fits"
            print(f"{name}, {way}: interrupted; the best plan so far: {told}", flush=True)
            for path in save_plans(best.ranked()[:1], out / way / "configs"):
                print(f"plan: {path}", flush=True)
            raise
        told = f"{outcome.best.cost.time:,.2f} ms" if outcome.fits else "nothing fits"
        print(f"{name}, {way}: {told}, in {outcome.cpu_seconds:.1f} s", flush=True)
        place = out / way
        save_plans(outcome.ranked(), place / "configs", best=SAVED)
        if way in ("aceso", "ours"):
            save_search(outcome, place / "logs", effort)
    return True


def _print(model: str, columns: list[str], rows: list[dict[str, Any]], out: Path) -> None:
    """Print the tables of a model, and save them."""
    for table in TABLES:
        values = _values(table, rows)
        print(f"\n{model}: {table.title}")
        lines = [("size", *columns)]
        for series in table.series:
            own = values.get(series, {})
            lines.append((series, *(f"{own[c]:,.2f}" if c in own else MISSING for c in columns)))
        print("\n".join(aligned(lines)))
        stem = f"{out.name}_{model}.csv"
        told = {series: values.get(series, {}) for series in table.series}
        save_table(out / "results" / f"{table.file}_{stem}", columns, told)
        if table.quantity == RATE:
            save_table(out / "results" / f"e2e_norm_thpt_{stem}", columns, _over(told))


def _values(table: Table, rows: Iterable[dict[str, Any]]) -> Values:
    found: Values = {}
    for row in rows:
        if row["quantity"] == table.quantity and row.get("value") is not None:
            series = NAMES.get(row["label"], row["label"])
            found.setdefault(series, {})[row.get("column") or row["pair"].split()[1]] = row["value"]
    return found


def _over(values: Values) -> Values:
    """Values over those of the grid."""
    base = values["megatron"]
    return {series: {c: v / base[c] for c, v in own.items() if c in base}
            for series, own in values.items()}  # fmt: skip
