"""Keep notebooks/: a py:percent source that people review, and beside it an .ipynb without outputs.

`check` names every notebook that breaks the rules (a missing half, cells that differ, outputs, a
function or class defined in a cell, a long cell); `sync` writes each .ipynb from its .py and keeps
the ids of the cells that did not change, so that a one-line edit is a one-line difference.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import jupytext
import nbformat

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent", "notebook_metadata_filter": "-all"},
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
}
"""Metadata of every .ipynb. JupyterLab writes the cells alone into the .py, without a header."""
LONGEST_CELL = 15
"""Lines of code in one cell; what is longer belongs into the package."""


def pairs(folder: Path) -> list[Path]:
    """The common stems of sources and notebooks below `folder`, without Jupyter's own copies."""
    found = [*folder.rglob("*.py"), *folder.rglob("*.ipynb")]
    return sorted(
        {path.with_suffix("") for path in found if ".ipynb_checkpoints" not in path.parts}
    )


def cells(notebook: nbformat.NotebookNode) -> list[tuple[str, str, tuple[str, ...]]]:
    """Parts of a notebook on which the two halves of a pair must agree."""
    return [
        (cell.cell_type, cell.source.strip(), tuple(cell.metadata.get("tags", ())))
        for cell in notebook.cells
    ]


def problems(folder: Path = NOTEBOOKS) -> list[str]:
    """One sentence for each broken rule below `folder`."""
    found = []
    for stem in pairs(folder):
        source, target = stem.with_suffix(".py"), stem.with_suffix(".ipynb")
        name = stem.relative_to(folder)
        if not source.exists() or not target.exists():
            there, absent = (target, source) if target.exists() else (source, target)
            found.append(f"{name}: {there.name} has no {absent.name} beside it")
            continue
        notebook = nbformat.read(target, as_version=4)
        if cells(notebook) != cells(jupytext.read(source)):
            found.append(f"{name}: cells of .py and .ipynb differ: run `make notebooks`")
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            if cell.outputs or cell.execution_count:
                found.append(f"{name}: cell {index} holds output: run `make notebooks`")
            if re.search(r"^(def|class|async def) ", cell.source, re.MULTILINE):
                found.append(
                    f"{name}: cell {index} defines a function or class: move it to workbench/"
                )
            if len(cell.source.splitlines()) > LONGEST_CELL:
                found.append(f"{name}: cell {index} has more than {LONGEST_CELL} lines")
    return found


def sync(folder: Path = NOTEBOOKS) -> list[Path]:
    """Write every .ipynb whose cells differ from its .py or hold outputs; return those written."""
    written = []
    for stem in pairs(folder):
        source, target = stem.with_suffix(".py"), stem.with_suffix(".ipynb")
        if not source.exists():
            raise ValueError(f"{target} has no .py: make one with `jupytext --to py:percent`")
        notebook = jupytext.read(source)
        if target.exists():
            old = nbformat.read(target, as_version=4)
            clean = not any(
                cell.get("outputs") or cell.get("execution_count") for cell in old.cells
            )
            if clean and cells(old) == cells(notebook):
                continue
            keep_ids(old, notebook)
        notebook.metadata.update(METADATA)
        nbformat.write(notebook, target)
        written.append(target)
    return written


def keep_ids(old: nbformat.NotebookNode, new: nbformat.NotebookNode) -> None:
    """Give cells of `new` the ids of equal cells of `old`, or else of those at the same place."""
    free = {cell.id: cell for cell in old.cells}
    unmatched = []
    for position, cell in enumerate(new.cells):
        same = [key for key, other in free.items() if other.source == cell.source]
        if same:
            cell.id = same[0]
            del free[same[0]]
        else:
            unmatched.append((position, cell))
    for position, cell in unmatched:
        if position < len(old.cells) and old.cells[position].id in free:
            cell.id = old.cells[position].id
            del free[cell.id]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check or write the notebooks.")
    parser.add_argument("action", choices=("check", "sync"))
    if parser.parse_args().action == "sync":
        for path in sync():
            print(f"wrote {path.relative_to(NOTEBOOKS.parent)}")
        return 0
    found = problems()
    print("\n".join(found) or f"{len(pairs(NOTEBOOKS))} notebooks are paired and free of output")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
