"""The package as a whole: its examples run, and it stands on its own."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import workbench.schedule

MODULES = [
    f"workbench.schedule.{m.name}" for m in pkgutil.iter_modules(workbench.schedule.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_docs_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_schedules_import_nothing_of_ours_but_the_compiler(name):
    tree = ast.parse(Path(importlib.import_module(name).__file__).read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            whole = node.module != "workbench"
            names = [node.module] if whole else [f"workbench.{alias.name}" for alias in node.names]
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for imported in names:
            assert not imported.startswith("torch")
            if imported.startswith("workbench"):
                allowed = ("workbench.schedule", "workbench.native", "workbench.core")
                assert imported.startswith(allowed)
