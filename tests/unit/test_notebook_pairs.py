"""scripts/notebooks.py: each .ipynb says what its exhibit or the .py beside it says, and carries no
output."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from workbench.core.notebook_files import quick_nbformat

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jupytext") is None, reason="jupytext is not installed"
)

SOURCE = """\
# %% [markdown]
# # Title

# %% tags=["parameters"]
layers = 4  # count

# %%
print(layers)
"""


def nbformat() -> ModuleType:
    """Imported when it is used: not every worker needs it."""
    return quick_nbformat()


@pytest.fixture(scope="module")
def notebooks(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_script", root / "scripts/notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, notebooks: ModuleType) -> Path:
    (tmp_path / "one.py").write_text(SOURCE)
    notebooks.sync(tmp_path)
    return tmp_path


def change(path: Path, **fields: object) -> None:
    """Change the last cell of a notebook."""
    notebook = nbformat().read(path, as_version=4)
    notebook.cells[-1].update(fields)
    nbformat().write(notebook, path)


def test_the_committed_notebooks_keep_the_rules(notebooks: ModuleType) -> None:
    assert notebooks.problems() == []


def test_sync_makes_a_valid_pair_and_then_leaves_it_alone(
    folder: Path, notebooks: ModuleType
) -> None:
    notebook = nbformat().read(folder / "one.ipynb", as_version=4)
    nbformat().validate(notebook)
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "code"]
    assert notebook.cells[1].metadata.tags == ["parameters"]
    assert notebooks.problems(folder) == []
    assert notebooks.sync(folder) == []


def test_one_edited_line_keeps_the_ids_of_all_cells(folder: Path, notebooks: ModuleType) -> None:
    before = [cell.id for cell in nbformat().read(folder / "one.ipynb", as_version=4).cells]
    (folder / "one.py").write_text(SOURCE.replace("layers = 4", "layers = 8"))
    assert "differ" in notebooks.problems(folder)[0]
    notebooks.sync(folder)
    after = [cell.id for cell in nbformat().read(folder / "one.ipynb", as_version=4).cells]
    assert after == before


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"execution_count": 3}, "holds output"),
        ({"source": "def f():\n    return 1"}, "defines a function"),
        ({"source": "x = 1\n" * 40}, "more than"),
    ],
)
def test_each_broken_rule_is_named(
    folder: Path, notebooks: ModuleType, fields: dict[str, object], word: str
) -> None:
    change(folder / "one.ipynb", **fields)
    assert any(word in sentence for sentence in notebooks.problems(folder))


def test_a_notebook_without_its_source_is_named(folder: Path, notebooks: ModuleType) -> None:
    (folder / "one.py").unlink()
    assert "has no one.py" in notebooks.problems(folder)[0]
    with pytest.raises(ValueError, match=r"has no \.py"):
        notebooks.sync(folder)


def test_a_notebook_that_is_not_as_its_exhibit_makes_it_is_named_and_made_again(
    root: Path, tmp_path: Path, notebooks: ModuleType
) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    notebooks.sync(tmp_path)
    made = sorted(path.name for path in figures.iterdir())
    assert made == sorted(path.name for path in (root / "notebooks" / "figures").iterdir())
    assert notebooks.problems(tmp_path) == []
    for fields in ({"source": "display(rows)"}, {"execution_count": 3}):
        change(figures / "harmony_8.ipynb", **fields)
        (sentence,) = notebooks.problems(tmp_path)
        assert sentence.startswith("figures/harmony_8: ")
        assert notebooks.sync(tmp_path) == [figures / "harmony_8.ipynb"]


def test_sync_removes_outputs(folder: Path, notebooks: ModuleType) -> None:
    output = nbformat().v4.new_output("stream", text="4\n")
    change(folder / "one.ipynb", outputs=[output], execution_count=1)
    assert notebooks.problems(folder)
    notebooks.sync(folder)
    assert notebooks.problems(folder) == []
