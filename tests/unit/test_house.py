"""The rules of the house: one list of dependencies, a light import, layers, and a clean tree."""

from __future__ import annotations

import ast
import doctest
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


# -- one list of dependencies ----------------------------------------------------------------
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_constraints_are_exact_versions_and_nothing_else() -> None:
    for name, version in pins().items():
        assert name == canonicalize_name(name)
        assert re.fullmatch(r"\d[\w.]*", version), f"{name}=={version}: no local suffix, no range"


def test_every_dependency_is_pinned_to_a_version_it_allows() -> None:
    wanted = PROJECT["dependencies"] + [line for extra in EXTRAS.values() for line in extra]
    for requirement in map(Requirement, wanted):
        version = pins()[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against =={version}"


APART = frozenset({
    "sphinx", "myst-parser",  # for `make docs`
    "absl-py", "accelerate", "grpcio", "markdown", "pyarrow", "tensorboard",
    "tensorboard-data-server", "werkzeug",  # for `finetune`
})  # fmt: skip
"""Packages of extras that `make setup` leaves out."""


def test_this_environment_holds_the_pinned_versions() -> None:
    if Path(sys.prefix) != ROOT / ".venv" or list((ROOT / ".venv").rglob("workbench-outside.pth")):
        pytest.skip("these tests run outside .venv, or .venv borrows packages from another Python")
    wrong = {}
    for name, version in pins().items():
        # May be another one; need not be there.
        if name in ("torch", "megatron-core", "plotly", "pymetis"):
            continue
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = version if name in APART else None
        if found != version:
            wrong[name] = (version, found)
    assert not wrong, "run `make setup`, or `make constraints` if the new versions are right"


def test_conda_installs_from_the_same_list() -> None:
    yaml = pytest.importorskip("yaml")
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    editable = re.fullmatch(r"--editable \.\[([\w,]+)\]", pip[-1])
    assert pip[:-1] == ["--constraint constraints.txt"]
    assert editable
    assert set(editable[1].split(",")) <= set(EXTRAS)
    names = {re.match(r"[\w-]+", entry)[0] for entry in conda if isinstance(entry, str)}
    ours = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert not names & ours, "a package of pyproject.toml is listed a second time"
    python = next(entry for entry in conda if str(entry).startswith("python>"))
    assert python.startswith(f"python{PROJECT['requires-python']}")


def test_containers_install_through_the_same_script() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    base, *later = re.findall(r"^FROM (\S+)(?: AS (\w+))?", dockerfile, re.MULTILINE)
    assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-devel-ubuntu\d\d\.\d\d", base[0])
    assert "scripts/setup.py" in dockerfile
    assert "pip install" not in dockerfile
    assert re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE)[-1] not in ("root", "0")
    devcontainer = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert devcontainer["build"]["target"] in {base[1], *(stage for _, stage in later)}
    assert devcontainer["postCreateCommand"] == "make setup"


def test_jupyter_answers_on_this_machine_only_and_wants_its_token() -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert "--ServerApp.ip=127.0.0.1" in recipe
    assert "token=" not in recipe
    assert "0.0.0.0" not in recipe + (ROOT / "Dockerfile").read_text()


# -- a light import --------------------------------------------------------------------------
def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_import_is_light(answered) -> None:
    code = "import sys, time; a = time.perf_counter(); import workbench; b = time.perf_counter();"
    told = run_python(code + "assert 'torch' not in sys.modules; print(b - a)")
    answered.enter("import workbench", 0.3, float(told))


def torch_free_modules() -> list[str]:
    """What lists, plans, draws and reads records, and so has to answer at once."""
    files = [
        *(ROOT / "workbench" / "core").glob("*.py"),
        *(ROOT / "workbench" / "schedule").glob("*.py"),
        *(ROOT / "workbench" / "partition").glob("*.py"),
        *(ROOT / "workbench" / "published").glob("*.py"),
        *(ROOT / "workbench" / "methods").glob("*/planner.py"),
        *(ROOT / "baselines").glob("*/planner.py"),
        *(ROOT / "workbench" / "methods").rglob("options.py"),
        *((ROOT / "workbench" / "runs" / f"{name}.py") for name in ("store",)),
        *(ROOT / "workbench" / "model" / "operators").glob("*.py"),
        ROOT / "workbench" / "cli" / "__init__.py",
        *(ROOT / "workbench" / "cli" / "aceso").glob("*.py"),
    ]
    return sorted(map(module_name, files))


def test_schedules_records_and_planners_do_not_import_torch() -> None:
    modules = torch_free_modules()
    each = "importlib.import_module(name)\n if 'torch' in sys.modules: print(name); break"
    code = f"import importlib, sys\nfor name in {modules!r}:\n {each}"
    assert len(modules) > 10
    assert run_python(code) == "", "this module is the first to import torch"


# -- who may import whom (CONTRIBUTING.md) ---------------------------------------------------
FLOOR = {"schedule", "model", "profile", "runtime"}
MAY_IMPORT = {
    "core": set(),
    "schedule": set(),
    "model": set(),
    "partition": set(),
    "elastic": set(),
    "runtime": {"schedule", "model"},
    "ranks": {"schedule", "model", "runtime"},
    "profile": {"schedule", "model", "runtime", "ranks"},
    "training": FLOOR | {"ranks"},
    "methods": FLOOR | {"ranks", "partition", "elastic", "training"},
    "baselines": FLOOR | {"ranks", "partition", "methods", "training"},
    "published": {"schedule", "model", "profile", "methods", "baselines"},
    "figures": {"published", "runs"},
    "runs": FLOOR | {"published"},
    "shown": set(),
    "ui": {
        "runs", "figures", "schedule", "published", "profile", "methods",
        "exhibits", "report", "doctor", "shown",
    },
    "exhibits": {
        "figures", "methods", "model", "partition", "published", "runs", "schedule", "shown",
    },
    "report": {"exhibits", "figures", "model", "published", "runs", "schedule"},
    "reproduce": {"exhibits", "model", "report", "runs"},
    "sweep_process": {"exhibits", "runs"},
    "api": {"cli", "runs", "sweep_process", "ui"},
    "searching": {"cli", "figures", "methods", "published", "runs", "shown"},
    "engine": {"methods", "model", "ranks", "runs", "runtime", "schedule", "training"},
    "wrapped": {"engine", "model", "schedule", "training"},
    "hf": {"wrapped"},
    "doctor": {"baselines", "cli", "exhibits", "profile", "published", "runs", "runtime"},
    "page": {"cli", "runs"},
    "cli": {
        "elastic", "exhibits", "figures", "methods", "model", "partition", "profile", "published",
        "reproduce", "runs", "runtime", "schedule", "sweep_process", "training",
    },
    "__main__": {"cli"},
    "workbench": {"api", "engine", "searching", "wrapped"},
}  # fmt: skip
"""Package of ours -> packages of ours that it may import, itself and `core` aside."""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def package(module: str) -> str:
    """`workbench.core.spec` -> `runs`, `baselines.l2l` -> `baselines`, `workbench.cli` -> `cli`."""
    parts = module.split(".")
    return parts[0] if parts[0] == "baselines" or len(parts) == 1 else parts[1]


@cache
def imports(path: Path) -> set[str]:
    """Modules that `path` names in an import: at the top, inside a function, for annotations."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports name the whole module"
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if exists(name) else node.module for name in inner)
    return found


def imported(path: Path) -> set[str]:
    """Those of ours."""
    ours = ("workbench", "baselines", "notebooks")
    return {name for name in imports(path) if name.split(".")[0] in ours}


@cache
def exists(module: str) -> bool:
    base = ROOT / Path(*module.split("."))
    return base.is_dir() or base.with_suffix(".py").exists()


def test_imports_follow_the_layers() -> None:
    for path in sources("workbench", "baselines"):
        names = {name for name in imported(path) if exists(name)}
        assert not any(name.startswith("notebooks") for name in names), path
        ours = package(module_name(path))
        allowed = MAY_IMPORT[ours] | {ours, "core"}
        for name in names - {"workbench"}:
            assert package(name) in allowed, f"{path}: {ours} must not import {name}"


METHODS = (ROOT / "workbench" / "methods", ROOT / "baselines")
"""Their folders are methods; the files beside those are what methods share."""
ROOMS = {METHODS[0] / "pipeline", METHODS[0] / "offload"}
"""Parts that methods share: pipelines of any order, layouts on one device."""


def method(module: str) -> Path | None:
    """The folder of the method that a module belongs to; None for a module that methods share."""
    path = ROOT / Path(*module.split("."))
    return next(
        (each for each in (path, *path.parents) if each.parent in METHODS and each.is_dir()), None
    )


def test_no_method_imports_another() -> None:
    """What methods share imports none."""
    for path in sources("workbench/methods", "baselines"):
        for name in imported(path):
            assert method(name) in {None, *ROOMS, method(module_name(path))}, f"{path}: {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, too, and those for annotations."""
    files = {module_name(path): path for path in sources("workbench", "baselines")}
    left = {name: imported(path) & files.keys() for name, path in files.items()}
    while free := [name for name, names in left.items() if not names]:
        left = {name: names.difference(free) for name, names in left.items() if name not in free}
    assert not left, "these import each other, or stand on modules that do"


GENERAL = ("schedule", "model", "partition", "runtime", "ranks", "profile", "training")
"""Packages that serve all methods."""
SYSTEMS = re.compile(
    r"(?<![a-z])(stronghold|harmony|varuna|ftpipe|aceso|megatron|l2l|zero.?(offload|infinity)"
    r"|deepspeed|fsdp)(?![a-z])",
    re.IGNORECASE,
)
FOREIGN = {
    ("workbench.model.refused", "DeepSpeed"),  # a module that its engine has wrapped
    ("workbench.ranks.stack_probe", "deepspeed/comm"),  # a file in whose frames a rank waits
}


def words_of(tree: ast.Module) -> Iterator[str]:
    """Identifiers, and text that is no docstring, of a module."""
    docs = {
        id(node.value)
        for body in (getattr(node, "body", None) for node in ast.walk(tree))
        if isinstance(body, list)
        for node in body
        if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value
        for name in ("id", "attr", "arg", "name", "module"):
            if isinstance(value := getattr(node, name, None), str):
                yield value


def test_no_general_package_names_a_system() -> None:
    """Docstrings cite papers; imports, identifiers and other text name none."""
    for path in sources(*(f"workbench/{name}" for name in GENERAL)):
        for text in words_of(ast.parse(path.read_text())):
            known = (module_name(path), text) in FOREIGN
            assert known or not SYSTEMS.search(text), f"{path}: {text!r}"


ENGINES = {
    "workbench.runtime.passes.engine",
    "workbench.runtime.passes.pack_engine",
    "workbench.runtime.passes.stage_engine",
    "workbench.methods.pipeline.paced",  # whose passes sleep
}


def test_actions_are_performed_by_these_engines_alone() -> None:
    found = {
        module_name(path)
        for path in sources("workbench", "baselines")
        if re.search(r"def perform\(self, action: \w+, step: int", path.read_text())
    }
    assert found == ENGINES


def test_nobody_but_exhibits_knows_one_by_its_module() -> None:
    """Sessions, reports and panels ask an exhibit; what they need of it is in `exhibits.base`."""
    rooms = ("base", "provenance", "session")
    shared = {"workbench.exhibits"} | {f"workbench.exhibits.{name}" for name in rooms}
    for path in sources("workbench/report", "workbench/ui"):
        found = {name for name in imported(path) if name.startswith("workbench.exhibits")}
        assert found <= shared, path


def test_only_panels_know_widgets() -> None:
    knows = {
        path.stem
        for path in sources("workbench")
        if {"ipywidgets", "anywidget"} & {name.partition(".")[0] for name in imports(path)}
    }
    assert knows
    named = {"dashboard", "timeline", "dial"}
    odd = {stem for stem in knows if not stem.endswith("panel")} - named
    assert not odd, "controllers are driven and tested without widgets"


# -- a clean tree ----------------------------------------------------------------------------
def tree() -> list[Path]:
    """Files that are committed or would be."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if answer.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for line in answer.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_a_file_is_at_most_400_lines() -> None:
    for path in sources("workbench", "baselines", "scripts"):
        lines = len(path.read_text().splitlines())
        assert lines <= 400, f"{path}: past 400 lines it wants to be two"


# Written in pieces, so that this file does not name them either.
FORBIDDEN = re.compile(
    r"(?<![\w.])/wo~rk/|/tmp/w~b\b|pypi\.o~rg|pythonho~sted|download\.pyto~rch|registry\.npm~js"
    r"|deb\.deb~ian|conda\.anac~onda".replace("~", "")
)


def test_no_file_names_a_machine_or_a_package_registry() -> None:
    found = []
    for path in tree():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {hit[0]}" for hit in FORBIDDEN.finditer(text)]
    assert not found


def test_examples_in_docstrings_are_true() -> None:
    for path in sources("workbench"):
        if "\n    >>> " in path.read_text():
            found = doctest.testmod(importlib.import_module(module_name(path)))
            assert found.failed == 0 < found.attempted, path


def test_outputs_and_environments_are_not_committed() -> None:
    names = {str(path.relative_to(ROOT)) for path in tree()}
    prefixes = (".venv/", "results/runs/", "results/reports/", "build/")
    assert not [name for name in names if name.startswith(prefixes) or "__pycache__" in name]
    large = [path for path in tree() if path.stat().st_size > 500_000]
    assert not large, "no committed file is above 500 kB"


@pytest.mark.parametrize(
    "tool", ["ruff check --output-format=concise", "ruff format --check", "codespell_lib"]
)
def test_the_linters_are_content(tool: str) -> None:
    command = [sys.executable, "-m", *tool.split()]
    pytest.importorskip(command[2])
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if answer.returncode != 0:
        pytest.fail(answer.stdout[:3000] + answer.stderr[:1000], pytrace=False)
