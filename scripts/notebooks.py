"""Keep notebooks/: those of figures as their exhibits make them, the others beside their sources.

A notebook of `notebooks/figures` has six cells, alike but for the words of its exhibit;
`notebooks.toml` has their template. Each other one is an .ipynb beside a py:percent source that
people review.
`check` names every notebook that breaks the rules (cells that differ from their source, a missing
half, outputs, a function or class defined in a cell, a long cell); `sync` writes them, and keeps
the ids of the cells that did not change, so that a one-line edit is a one-line difference.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat

from workbench.exhibits import EXHIBITS, find
from workbench.exhibits.base import Exhibit

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
}
PAIRED = METADATA | {
    "jupytext": {"formats": "ipynb,py:percent", "notebook_metadata_filter": "-all"},
}
"""Metadata of an .ipynb with a source: JupyterLab writes the cells alone into the .py, without a
header."""
WIDTH = 100
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


def template() -> dict[str, Any]:
    """Cells of an exhibit's notebook, and words on parameters."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def made(exhibit: Exhibit) -> nbformat.NotebookNode:
    """The notebook of an exhibit."""
    told = template()
    names = [*(["text"] if exhibit.reads else []), *exhibit.takes]
    parameters = "\n".join(_parameters(exhibit, ["size", "results", "force", *names], told))
    words = {"told": commented(_told(exhibit)), "parameters": parameters}
    cells = told["cells"].format(**words, opened=_opened(exhibit))
    return _with(jupytext.reads(cells, fmt="py:percent"), METADATA)


def sourced(source: Path) -> nbformat.NotebookNode:
    """The notebook of a py:percent source."""
    return _with(jupytext.read(source), PAIRED)


def _with(notebook: nbformat.NotebookNode, metadata: dict[str, Any]) -> nbformat.NotebookNode:
    notebook.metadata = nbformat.from_dict(metadata)
    return notebook


def commented(text: str) -> str:
    """Markdown as py:percent has it."""
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())


def _told(exhibit: Exhibit) -> str:
    first = f"**Claim** ({exhibit.place or exhibit.section}). {exhibit.claim}"
    paragraphs = [first, *f"**How it is tested.** {exhibit.tested}".split("\n\n")]
    parts = [textwrap.fill(each, WIDTH - 2, break_on_hyphens=False) for each in paragraphs]
    parts[0] = f"# {exhibit.subject_words}\n{parts[0]}"
    if exhibit.sizes:
        rows = [("size", "what runs", "takes"), *((n, *told) for n, told in exhibit.sizes.items())]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        parts.append("\n".join([lines[0], "|---|---|---|", *lines[1:]]))
    return "\n\n".join(parts)


def _parameters(exhibit: Exhibit, names: list[str], told: dict[str, Any]) -> Iterator[str]:
    own = dict.fromkeys(exhibit.lists, told["several"]["words"]) | exhibit.parameters
    own |= {} if exhibit.runs else told["shows"]
    own |= told["plans"] if getattr(exhibit, "plans", ()) else {}
    for name in names:
        kind, value, words = told["parameters"][name]
        kind = "str" if name in exhibit.lists else kind
        yield f"{name}: {kind} = {value}  # {own.get(name, words)}"


def _opened(exhibit: Exhibit) -> str:
    given = [f'"{exhibit.figure}"', "size", "results", *(["text"] if exhibit.reads else [])]
    words = ", ".join([*given, *(f"{name}={name}" for name in exhibit.takes)])
    line = f"open_exhibit({words})"
    if len(f"exhibit = {line}") <= WIDTH:
        return line
    filled = textwrap.fill(f"{words},", WIDTH - 4)
    return f"open_exhibit(\n{textwrap.indent(filled, ' ' * 4)}\n)  # fmt: skip"


def problems(folder: Path = NOTEBOOKS) -> list[str]:
    """One sentence for each broken rule below `folder`."""
    exhibits = {find(name).notebook: find(name) for name in EXHIBITS}
    found = []
    for stem in pairs(folder):
        source, target = stem.with_suffix(".py"), stem.with_suffix(".ipynb")
        name = stem.relative_to(folder)
        wanted = made(exhibits[stem.name]) if stem.name in exhibits else None
        if wanted is None and not (source.exists() and target.exists()):
            there, absent = (target, source) if target.exists() else (source, target)
            found.append(f"{name}: {there.name} has no {absent.name} beside it")
            continue
        notebook = nbformat.read(target, as_version=4)
        if cells(notebook) != cells(wanted or sourced(source)):
            found.append(f"{name}: cells differ from their source: run `make notebooks`")
        found += [f"{name}: {words}" for words in _broken(notebook)]
    return found


def _broken(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """Rules that cells of code break."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if cell.outputs or cell.execution_count:
            yield f"cell {index} holds output: run `make notebooks`"
        if re.search(r"^(def|class|async def) ", cell.source, re.MULTILINE):
            yield f"cell {index} defines a function or class: move it to workbench/"
        if len(cell.source.splitlines()) > LONGEST_CELL:
            yield f"cell {index} has more than {LONGEST_CELL} lines"


def sync(folder: Path = NOTEBOOKS) -> list[Path]:
    """Write every .ipynb whose cells differ from their source or hold outputs; return those
    written."""
    sources = {}
    if (figures := folder / "figures").is_dir():
        exhibits = map(find, EXHIBITS)
        sources = {figures / f"{exhibit.notebook}.ipynb": made(exhibit) for exhibit in exhibits}
    for stem in pairs(folder):
        source, target = stem.with_suffix(".py"), stem.with_suffix(".ipynb")
        if target in sources:
            continue
        if not source.exists():
            raise ValueError(f"{target} has no .py: make one with `jupytext --to py:percent`")
        sources[target] = sourced(source)
    return [target for target, notebook in sources.items() if _written(target, notebook)]


def _written(target: Path, notebook: nbformat.NotebookNode) -> bool:
    """Whether a notebook had to be written."""
    if target.exists():
        old = nbformat.read(target, as_version=4)
        clean = not any(cell.get("outputs") or cell.get("execution_count") for cell in old.cells)
        if clean and old.metadata == notebook.metadata and cells(old) == cells(notebook):
            return False
        keep_ids(old, notebook)
    nbformat.write(notebook, target)
    return True


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
    print(
        "\n".join(found) or f"{len(pairs(NOTEBOOKS))} notebooks are up to date and free of output"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
