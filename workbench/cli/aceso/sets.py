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
from workbench.core.paths import user_path
from workbench.exhibits import open_exhibit
from workbench.exhibits.aceso.found import (
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
from workbench.methods.aceso.settings import SETS, WAYS, Setting, searched
from workbench.methods.aceso.show import aligned
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
         "actual here": "actual"}  # fmt: skip
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
                          metavar="MODEL", help="models of tables (default: all; of small at smoke "
                          "gpt and resnet)")  # fmt: skip
        verb.add_argument("--profiled-time-path", type=Path, default=DATABASE, metavar="DIR",
                          help="folder of profiles, CSV files as the artifact has them (default: "
                          "its small ones, of the small setting)")  # fmt: skip
        add_results_flag(verb)
        verb.set_defaults(handler=partial(_run, name))


def _run(name: str, given: argparse.Namespace) -> int:
    store, database = Store(given.results), user_path(given.profiled_time_path)
    rows, models = [], given.model_name
    if name == "small" and database == DATABASE:
        session = open_exhibit("aceso_small", given.size, store.root)
        shown = session.run()
        rows = shown[shown["label"] == "actual here"].to_dict("records")
        models = models or session.size.models
        print(f"figure: {session.figure(shown).paths[1]}")
    settings = [each for each in SETS[name] if not models or each.model in models]
    effort, kept = Effort(plans=SIZES[given.size]), store.root / FOLDER
    rows += found_rows(settings, database, effort, kept)
    missing = [row for row in rows if row["status"] == "no profiles"]
    for row in missing:
        print(f"not searched: {row['note']}")
    if len(missing) == len(settings):
        raise ValueError(f"{database} has no profiles of the {name} setting; name a folder that "
                         "has: --profiled-time-path DIR")  # fmt: skip
    gone = {(row["pair"], row["column"]) for row in missing}
    out = kept / name
    for setting in settings:
        if (f"{setting.model} {setting.size}", setting.column) not in gone:
            _save(setting, database, effort, kept, out)
    for model in dict.fromkeys(setting.model for setting in settings):
        columns = [each.column for each in settings if each.model == model]
        _print(model, columns, [row for row in rows if row["pair"].split()[0] == model], name, out)
    print(f"plans, trends and tables: {out}")
    return 0


def _save(setting: Setting, database: Path, effort: Effort, kept: Path, out: Path) -> None:
    """Files of each search, as the artifact lays them out."""
    for way in WAYS:
        outcome, place = searched(setting, way, database, effort, kept), out / way
        save_plans(outcome.ranked(), place / "configs", best=SAVED)
        if way in ("aceso", "ours"):
            save_search(outcome, place / "logs", effort)


def _print(
    model: str, columns: list[str], rows: list[dict[str, Any]], name: str, out: Path
) -> None:
    """Print the tables of a model, and save them."""
    for table in TABLES:
        values = _values(table, rows)
        print(f"\n{model}: {table.title}")
        lines = [("size", *columns)]
        for series in table.series:
            own = values.get(series, {})
            lines.append((series, *(f"{own[c]:,.2f}" if c in own else MISSING for c in columns)))
        print("\n".join(aligned(lines)))
        stem = f"{name}_{model}.csv"
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
