"""Pages of docs/ that are made from other files, and the table of methods in README.md.

`write` makes them, `check` names those that are out of date. Their sources are the committed rows
of results/published-here (results.md), the exhibits and their notebooks (artifact.md), the notebook
quickstart (quickstart.md) and the table of methods (README.md). `expect RESULTS` takes the verdicts
that artifact.md tells from a results folder in which `make reproduce` ran; `figures RUN` draws the
pictures, the first one of the run whose folder it is given.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from workbench.core import methods
from workbench.core.options import takes
from workbench.exhibits import EXHIBITS, find, open_exhibit
from workbench.exhibits.base import Exhibit
from workbench.report.timeline import draw_gantt
from workbench.reproduce import NOTEBOOKS
from workbench.runs.store import Store

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ROWS = ROOT / "results" / "published-here"
EXPECTED = DOCS / "expected.csv"
MADE = "<!-- Made by scripts/docs.py: change its sources, then `make docs`. -->\n"
MATRIX = re.compile(r"(?<=<!-- methods -->\n).*?(?=<!-- /methods -->)", re.DOTALL)
DPI = 130
PREDICTED = re.compile(r"\d+ runs are predicted [\d.]+ % off on the mean, but \d+")
PICTURES = {
    "9": ("stronghold", "paper"),
    "harmony_12": ("harmony", "paper"),
    "varuna_bubbles": ("varuna", "paper"),
    "pipelines": ("pipelines", "paper"),
    "8a": ("baselines", "paper"),
}
"""Exhibit -> name and size of the figure on the page of a system."""
WORKLOAD = ["layers", "hidden", "seq", "batch", "dtype"]


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of Markdown."""
    heads = [*heads]
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


# -- README.md: what each method can ------------------------------------------------------------
def matrix() -> str:
    """Methods by their abilities, a line for all that have the same ones."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in methods.known().values():
        devices = "several" if row.parallel else "one"
        own = "yes" if row.modules else "no"
        disk = "yes" if takes(row.name, "optimizer_tier") else "no"
        after = "any" if row.portable else "its own"
        alike.setdefault((devices, "yes", own, disk, "yes", after), []).append(row.name)
    heads = ("methods", "devices", "Hugging Face", "own modules", "disk", "resume", "checkpoints")
    lines = [(", ".join(map("`{}`".format, names)), *able) for able, names in alike.items()]
    return table(heads, lines)


def readme() -> str:
    """README.md with the present table of methods, and how far predictions are off."""
    off = measured()["off"].dropna().abs() * 100
    told = f"{len(off)} runs are predicted {off.mean():.1f} % off on the mean, but {off.max():.0f}"
    text = (ROOT / "README.md").read_text()
    return PREDICTED.sub(told, MATRIX.sub(lambda _: matrix(), text, count=1), count=1)


# -- results.md: all committed rows -------------------------------------------------------------
def measured() -> pd.DataFrame:
    """The committed rows of all machines, with the name of their file."""
    found = []
    for path in sorted(ROWS.glob("*/*.csv")):
        frame = pd.read_csv(path)
        found.append(frame.assign(file=f"{path.parent.name}/{path.name}", gpu=path.parent.name))
    rows = pd.concat(found, ignore_index=True)
    rows["ranks"] = rows["ranks"].fillna(1).astype(int)
    rows["off"] = rows["predicted_step_seconds"] / rows["step_seconds_median"] - 1
    rows["peak_off"] = rows["predicted_peak_device_gib"] / rows["peak_device_gib"] - 1
    return rows


def results() -> str:
    """docs/results.md."""
    rows = measured()
    told = [*rows.groupby(["file", "ranks"])]
    lines = [_true(f"`{file}`, {_gpus(group, ranks)}", group) for (file, ranks), group in told]
    heads = ("rows", "steps predicted", "off on the mean", "at worst", "peaks off", "at worst")
    body = table(heads, [*filter(None, lines), _true("all", rows)])
    parts = [(DOCS / "results.md.in").read_text().format(made=MADE, runs=len(rows), plans=body)]
    for workload, group in rows.groupby(WORKLOAD, sort=True):
        layers, hidden, seq, batch, dtype = workload
        size = group["parameters"].iloc[0] / 1e9
        parts.append(
            f"\n## {layers} layers of hidden {hidden}, sequence {seq}, batch {batch}, {dtype}\n\n"
            f"{size:.2f} billion parameters.\n\n" + _measured(group)
        )
    return "".join(parts)


def _gpus(group: pd.DataFrame, ranks: int) -> str:
    return f"{ranks} x {group['gpu'].iloc[0].upper()}"


def _true(name: str, group: pd.DataFrame) -> tuple[object, ...] | None:
    off, peak = group["off"].dropna().abs(), group["peak_off"].dropna().abs()
    if off.empty:
        return None
    values = (off.mean(), off.max(), peak.mean(), peak.max())
    shares = ["-" if pd.isna(value) else f"{100 * value:.1f} %" for value in values]
    return (name, len(off), *shares)


def _measured(group: pd.DataFrame) -> str:
    heads = ("method", "devices", "GiB a device", "clip", "samples/s", "step, s", "predicted, s",
             "device peak, GiB", "host, GiB", "measured", "commit")  # fmt: skip
    ordered = group.sort_values(["ranks", "samples_per_second"], ascending=[True, False])
    return table(heads, map(_line, ordered.to_dict("records")))


def _line(row: dict) -> list[str]:
    shape = f" ({row['replicas']:.0f} replicas, {row['micro']:.0f} a micro-batch)"
    named = row["method"] + (shape if pd.notna(row["replicas"]) else "")
    speed = _number(row["samples_per_second"]) if row["status"] == "ok" else row["status"]
    numbers = ["step_seconds_median", "predicted_step_seconds", "peak_device_gib", "host_gib"]
    cap, clip = _number(row["device_cap_gib"], "all"), _number(row["clip"], "none")
    shown = [_number(row[name]) for name in numbers]
    date = row["measured_on"][:10]
    return [named, _gpus(pd.DataFrame([row]), row["ranks"]), cap, clip, speed, *shown, date,
            row["commit"][:7]]  # fmt: skip


def _number(value: float, none: str = "-") -> str:
    return none if pd.isna(value) else f"{value:.4g}"


# -- artifact.md: claims and experiments --------------------------------------------------------
def artifact() -> str:
    """docs/artifact.md."""
    expected = pd.read_csv(EXPECTED, keep_default_na=False).set_index("exhibit")
    exhibits = [find(key) for key in EXHIBITS]
    claims, experiments = [], []
    for number, exhibit in enumerate(exhibits, start=1):
        claims.append((f"C{number}", exhibit.claim, made_in(exhibit), f"E{number}"))
        told, lasts = expected.loc[exhibit.name], dials(exhibit)
        experiments.append(
            (f"E{number}", f"`workbench figure {exhibit.name}`", lasts["smoke"][1],
             lasts["small"][1] if exhibit.runs else "-", told["disk"], told["smoke"],
             told["paper"])
        )  # fmt: skip
    drawn = [each.name for each in exhibits if not each.runs]
    simulated = [e.name for e in exhibits if e.runs and "nothing" not in dials(e)["paper"][1]]
    return (
        (DOCS / "artifact.md.in")
        .read_text()
        .format(
            made=MADE,
            claims=table(("claim", "in words", "made in", "experiment"), claims),
            experiments=table(
                (
                    "experiment",
                    "command",
                    "takes at smoke",
                    "at small",
                    "disk at smoke",
                    "expected at smoke",
                    "expected at paper size, without a GPU",
                ),
                experiments,
            ),  # fmt: skip
            drawn=", ".join(f"`{name}`" for name in drawn),
            simulated=", ".join(f"`{name}`" for name in simulated),
        )
    )


def made_in(exhibit: Exhibit) -> str:
    """Paper and place of a claim."""
    return ": ".join(filter(None, (exhibit.system, exhibit.section)))


def dials(exhibit: Exhibit) -> dict[str, tuple[str, str]]:
    """Size -> what runs and how long it takes, as the exhibit's notebook says it."""
    text = (NOTEBOOKS / f"{exhibit.notebook}.py").read_text()
    found = re.findall(r"^# \| (\w+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    return {size: (what, lasts) for size, what, lasts in found}


def expect(folder: Path) -> None:
    """Write docs/expected.csv from the records in a results folder."""
    rows = []
    for exhibit in map(find, EXHIBITS):
        with tempfile.TemporaryDirectory() as empty:
            paper = verdicts(exhibit, "paper", empty)
        used = sum(
            file.stat().st_size
            for record in open_exhibit(exhibit.figure, "smoke", folder).records()
            for file in (folder / "runs" / record.key).rglob("*")
        )
        rows.append((exhibit.name, f"{used / 2**20:.1f} MiB", verdicts(exhibit, "smoke", folder),
                     paper))  # fmt: skip
    pd.DataFrame(rows, columns=["exhibit", "disk", "smoke", "paper"]).to_csv(EXPECTED, index=False)


def verdicts(exhibit: Exhibit, size: str, folder: str | Path) -> str:
    """How many of an exhibit's claims hold, of what a results folder has."""
    session = open_exhibit(exhibit.figure, size, folder)
    rows = session.rows()
    counted = Counter(session.verdict(rows).get("verdict", ())) if len(rows) else Counter()
    return ", ".join(f"{word} {count}" for word, count in counted.most_common()) or "a figure"


# -- quickstart.md: the notebook as a page ------------------------------------------------------
def quickstart() -> str:
    """docs/quickstart.md."""
    import jupytext

    parts = [MADE]
    for cell in jupytext.read(ROOT / "notebooks" / "quickstart.py").cells:
        code = cell.cell_type == "code"
        parts.append(f"\n```python\n{cell.source}\n```\n" if code else f"\n{cell.source}\n")
    return "".join(parts)


# -- figures ------------------------------------------------------------------------------------
def figures(run: Path) -> None:
    """Draw docs/figures: predicted above measured, of a STRONGHOLD run whose folder is given, and
    figures of exhibits from committed rows and simulations."""
    store = Store(run.parents[1])
    pictures = {"timeline": draw_gantt([store.find(run.name)], store)}
    for key, (name, size) in PICTURES.items():
        with tempfile.TemporaryDirectory() as empty:
            session = open_exhibit(key, size, empty)
            pictures[name] = session.draw(session.rows())
    for name, picture in pictures.items():
        picture.savefig(DOCS / "figures" / f"{name}.png", dpi=DPI)


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "README.md": readme,
    DOCS / "results.md": results,
    DOCS / "artifact.md": artifact,
    DOCS / "quickstart.md": quickstart,
}


def stale() -> list[str]:
    """Names of pages that are not as their sources make them."""
    return [
        str(path.relative_to(ROOT))
        for path, made in PAGES.items()
        if not path.exists() or path.read_text() != made()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the pages of docs/ that come from sources.")
    parser.add_argument("action", choices=("check", "write", "expect", "figures"))
    parser.add_argument("folder", nargs="?", type=Path, help="of results, or of a run")
    arguments = parser.parse_args()
    if arguments.action in ("expect", "figures"):
        if arguments.folder is None:
            parser.error(f"{arguments.action} needs a folder")
        {"expect": expect, "figures": figures}[arguments.action](arguments.folder.resolve())
        return 0
    found = stale()
    if arguments.action == "write":
        for name in found:
            (ROOT / name).write_text(PAGES[ROOT / name]())
            print(f"wrote {name}")
        return 0
    print(
        "\n".join(f"{name} is out of date: run `make docs`" for name in found) or "all up to date"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
