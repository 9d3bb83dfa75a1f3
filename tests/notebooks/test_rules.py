"""Six cells, the same in every notebook, and nothing defined in them."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest

from workbench.exhibits import ACESO, EXHIBITS, FTPIPE, HARDWARE, HARMONY, VARUNA, find
from workbench.exhibits.dials import SIZES
from workbench.reproduce import NOTEBOOKS, check_parameters, read_notebook

LONGEST_CELL = 12
notebook = cache(read_notebook)


def parameters_of(figure: str) -> dict[str, str]:
    exhibit = find(figure)
    own = {"text": "str"} if exhibit.reads else {}
    kinds = {"methods": "str", "machine": "str", "overlay": "bool"} | dict.fromkeys(
        exhibit.lists, "str"
    )
    own |= {name: kinds.get(name, "int") for name in exhibit.takes}
    return {"size": "str", "results": "str", "force": "bool"} | own


def test_every_exhibit_has_a_notebook_and_every_notebook_an_exhibit() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {
        find(name).notebook for name in EXHIBITS
    }


@pytest.mark.parametrize("figure", EXHIBITS)
def test_six_cells(figure: str) -> None:
    title, parameters, plan, run, drawing, verdict = notebook(figure).cells
    exhibit, told = find(figure), " ".join(title.source.split())
    assert [c.cell_type for c in (title, parameters)] == ["markdown", "code"]
    heads = dict.fromkeys(HARDWARE, exhibit.title) | dict.fromkeys(HARMONY, "Harmony, ")
    heads |= dict.fromkeys(VARUNA, "Varuna, ") | dict.fromkeys(FTPIPE, "FTPipe, ")
    heads |= dict.fromkeys(ACESO, "Aceso, ")
    assert told.startswith(f"# {heads.get(figure, f'STRONGHOLD, figure {figure}')}")
    assert "**Claim**" in told or " ".join(exhibit.claim.split()) in told
    assert exhibit.section in told
    if figure in HARMONY:
        told_of = "all that is drawn is measured" if find(figure).reads else "no measurements"
        assert told_of in told
    if exhibit.runs:
        assert all(f"| {size} |" in told for size in SIZES)
    assert parameters.metadata["tags"] == ["parameters"]
    for cell, call in ((plan, "preview"), (run, "run"), (drawing, "figure"), (verdict, "verdict")):
        assert f"exhibit.{call}(" in cell.source
    own = [f"{name}={name}" for name in exhibit.takes]
    words = ", ".join([f'"{figure}", size, results', *(["text"] * bool(exhibit.reads)), *own])
    assert f"open_exhibit({words})" in " ".join(plan.source.split()).replace("( ", "(").replace(
        ",)", ")"
    ).replace(", )", ")")


@pytest.mark.parametrize("figure", EXHIBITS)
def test_cells_are_short_and_define_nothing(figure: str) -> None:
    for cell in notebook(figure).cells[1:]:
        assert len(cell.source.splitlines()) <= LONGEST_CELL
        nodes = list(ast.walk(ast.parse(cell.source)))
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        assert not [node for node in nodes if isinstance(node, definitions)]


@pytest.mark.parametrize("figure", EXHIBITS)
def test_parameters_are_typed_explained_and_the_only_literals(figure: str) -> None:
    from papermill.inspection import inspect_notebook  # takes seconds, as nbformat does

    source = notebook(figure)
    known = inspect_notebook(source)
    assert {name: p["inferred_type_name"] for name, p in known.items()} == parameters_of(figure)
    assert all(p["help"] for p in known.values())
    for cell in source.cells[2:]:
        nodes = ast.walk(ast.parse(cell.source))
        assert {n.value for n in nodes if isinstance(n, ast.Constant)} <= {figure}
    check_parameters(source, {"size": "paper", "force": True}, figure)


def test_pairs_are_in_step(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("pairs", root / "scripts" / "notebooks.py")
    pairs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pairs)
    assert pairs.problems(NOTEBOOKS) == []
