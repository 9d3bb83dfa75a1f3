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
from workbench.exhibits.dials import SIZES
from workbench.published.here import PIPELINES, frame, place
from workbench.report.timeline import draw_gantt
from workbench.runs.store import Store

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ROWS = ROOT / "results" / "published-here"
EXPECTED = DOCS / "expected.csv"
MADE = "<!-- Made by scripts/docs.py: change its sources, then `make docs`. -->\n"
MATRIX = re.compile(r"(?<=<!-- methods -->\n).*?(?=<!-- /methods -->)", re.DOTALL)
DPI = 130
PREDICTED = re.compile(r"\d+ runs are predicted [\d.]+ % off on the mean, but \d+")
PICTURES = {"9": "stronghold", "8a": "baselines", "harmony_12": "harmony", "pipelines": "pipelines"}
PICTURES |= {"varuna_bubbles": "varuna"}
"""Exhibit -> the page that shows its figure at paper size."""
WORKLOAD = ["layers", "hidden", "seq", "batch", "dtype"]


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of Markdown."""
    heads = [*heads]
    first, *lines = (f"| {' | '.join(map(str, line))} |\n" for line in (heads, *rows))
    return "".join([first, f"|{'---|' * len(heads)}\n", *lines])


# -- README.md: what each method can ------------------------------------------------------------
def matrix() -> str:
    """Our methods by their abilities, a line for all that have the same ones."""
    alike: dict[tuple[str, ...], list[str]] = {}
    ours = methods.METHODS | methods.PEERS | methods.PARALLEL | methods.pipelines()
    for row in ours.values():
        devices = "several" if row.parallel else "one (`Engine`: several)" if row.sharded else "one"
        loop = row.driven  # steps in a user's own loop
        own = "yes" if row.modules else "`Engine`" if loop else "no"
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
    for path in sorted(ROWS.glob("*/*.jsonl")):
        found.append(frame(path).assign(file=place(path), gpu=path.parent.name))
    rows = pd.concat(found, ignore_index=True)
    rows["off"] = rows["predicted_step_seconds"] / rows["step_seconds_median"] - 1
    rows["peak_off"] = rows["predicted_peak_device_gib"] / rows["peak_device_gib"] - 1
    return rows


def results() -> str:
    """docs/results.md."""
    rows = measured()
    told = rows.groupby(["file", "gpu", "ranks"])
    lines = [_true(f"`{file}`, {_gpus(gpu, n)}", group) for (file, gpu, n), group in told]
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


def _gpus(name: str, ranks: int) -> str:
    return f"{ranks} x {name.upper()}"


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
    shape = f" ({row['replicas']} replicas, {row['micro']} a micro-batch)"
    named = row["named"] + (shape if row["file"].endswith(PIPELINES.file) else "")
    speed = _number(row["samples_per_second"]) if row["status"] == "ok" else row["status"]
    numbers = ["step_seconds_median", "predicted_step_seconds", "peak_device_gib", "host_gib"]
    cap, clip = _number(row["device_cap_gib"], "all"), _number(row["clip"], "none")
    shown = [_number(row[name]) for name in numbers]
    gpus, when = _gpus(row["gpu"], row["ranks"]), (row["date"], row["commit"][:7])
    return [named, gpus, cap, clip, speed, *shown, *when]


def _number(value: float, none: str = "-") -> str:
    return none if pd.isna(value) else f"{value:.4g}"


# -- artifact.md: claims and experiments --------------------------------------------------------
def artifact() -> str:
    """docs/artifact.md."""
    expected = pd.read_csv(EXPECTED, keep_default_na=False).set_index("exhibit")
    claims, experiments, drawn, simulated = [], [], [], []
    for number, exhibit in enumerate(map(find, EXHIBITS), start=1):
        place = ": ".join(filter(None, (exhibit.system, exhibit.section)))
        claims.append((f"C{number}", exhibit.claim, place, f"E{number}"))
        told, said = expected.loc[exhibit.name], dials(exhibit)
        command, small = f"`workbench figure {exhibit.name}`", " | ".join(said["small"])
        experiments.append((f"E{number}", command, *said["smoke"], *told[["disk", "smoke"]], small))
        if not exhibit.runs:
            drawn.append(f"`{exhibit.name}` ({told['paper']})")
        elif "hold" in told["paper"]:
            simulated.append(f"`{exhibit.name}` ({told['paper']})")
    text = (DOCS / "artifact.md.in").read_text()
    heads = ("experiment", "command", "runs at smoke", "takes", "disk", "expected at smoke")
    return text.format(
        made=MADE,
        claims=table(("claim", "in words", "made in", "experiment"), claims),
        experiments=table((*heads, "runs at small", "takes"), experiments),
        drawn=", ".join(drawn),
        simulated=", ".join(simulated),
    )


def dials(exhibit: Exhibit) -> dict[str, tuple[str, str]]:
    """Size -> what runs and how long it takes."""
    return dict.fromkeys(SIZES, ("nothing", "seconds")) | exhibit.sizes


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
        smoke = verdicts(exhibit, "smoke", folder)
        rows.append((exhibit.name, f"{used / 2**20:.1f} MiB", smoke, paper))
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
    for key, name in PICTURES.items():
        with tempfile.TemporaryDirectory() as empty:
            session = open_exhibit(key, "paper", empty)
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
    old = [path for path, made in PAGES.items() if not path.exists() or path.read_text() != made()]
    return [str(path.relative_to(ROOT)) for path in old]


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
    for name in stale():
        if arguments.action == "check":
            print(f"{name} is out of date: run `make docs`")
            return 1
        (ROOT / name).write_text(PAGES[ROOT / name]())
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
