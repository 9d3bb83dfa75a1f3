"""Six cells, the same in every notebook, and nothing defined in them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import jupytext
import pytest
from papermill.inspection import inspect_notebook

from workbench.figures.exhibit import FIGURES, find
from workbench.figures.sizes import SIZES
from workbench.reproduce import NOTEBOOKS

LONGEST_CELL = 10


def notebook(figure: str):
    return jupytext.read(NOTEBOOKS / f"stronghold_{figure}.py")


def test_every_exhibit_has_a_notebook_and_every_notebook_an_exhibit() -> None:
    found = {path.stem.removeprefix("stronghold_") for path in NOTEBOOKS.glob("stronghold_*.py")}
    assert found == set(FIGURES)


@pytest.mark.parametrize("figure", FIGURES)
def test_six_cells(figure: str) -> None:
    title, parameters, plan, run, drawing, verdict = notebook(figure).cells
    assert [c.cell_type for c in (title, parameters)] == ["markdown", "code"]
    assert title.source.startswith(f"# STRONGHOLD, figure {figure}")
    assert "**Claim**" in title.source
    assert find(figure).SECTION in title.source
    assert all(f"| {size} |" in title.source for size in SIZES)
    assert parameters.metadata["tags"] == ["parameters"]
    for cell, call in ((plan, "preview"), (run, "run"), (drawing, "figure"), (verdict, "verdict")):
        assert f"exhibit.{call}(" in cell.source
    assert f'open_exhibit("{figure}", size, results)' in plan.source


@pytest.mark.parametrize("figure", FIGURES)
def test_cells_are_short_and_define_nothing(figure: str) -> None:
    for cell in notebook(figure).cells[1:]:
        assert len(cell.source.splitlines()) <= LONGEST_CELL
        nodes = list(ast.walk(ast.parse(cell.source)))
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        assert not [node for node in nodes if isinstance(node, definitions)]


@pytest.mark.parametrize("figure", FIGURES)
def test_parameters_are_typed_explained_and_the_only_literals(figure: str) -> None:
    source = notebook(figure)
    known = inspect_notebook(source)
    assert {name: p["inferred_type_name"] for name, p in known.items()} == {
        "size": "str", "results": "str", "force": "bool",
    }  # fmt: skip
    assert all(p["help"] for p in known.values())
    for cell in source.cells[2:]:
        literals = [
            n.value for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.Constant)
        ]
        assert set(literals) <= {figure}


def test_pairs_are_in_step(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("pairs", root / "scripts" / "notebooks.py")
    pairs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pairs)
    assert pairs.problems(NOTEBOOKS) == []
