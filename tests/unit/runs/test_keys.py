"""A run's key names all that decides its result, and nothing else; nothing is imported for it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from workbench import cli
from workbench.model.spec import ModelSpec
from workbench.runs import machine, methods
from workbench.runs.resolve import Keys, key_of, resolve
from workbench.runs.spec import RunSpec

ROOT = Path(__file__).resolve().parents[3]
EVIL = "import pathlib\npathlib.Path('ran').write_text(__name__)\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(path: Path, text: str) -> None:
    """Other contents, seen also where a clock is coarse."""
    path.write_text(text)
    stamp = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(stamp, stamp))


def of_text(text: Path | str) -> str:
    return key_of(RunSpec(method="plain", text=str(text)))


def test_a_text_is_what_it_says_wherever_it_lies(here: Path) -> None:
    text, folder = here / "a.txt", here / "wiki"
    folder.mkdir()
    for file in (text, folder / "wiki.train.tokens"):
        file.write_text("one " * 9)
    first = of_text("a.txt"), of_text("wiki")
    assert (of_text(text), of_text(here / "wiki" / ".." / "wiki")) == first
    for file in (text, folder / "wiki.train.tokens"):
        change(file, "two " * 9)
    assert not {of_text("a.txt"), of_text("wiki")} & {*first}
    for file in (text, folder / "wiki.train.tokens"):
        change(file, "one " * 9)
    assert (of_text("a.txt"), of_text("wiki")) == first
    assert of_text("missing.txt") != first[0]


def test_a_configuration_is_one_model_under_every_path_of_it(here: Path) -> None:
    def of(family: str, digest: str = "") -> str:
        model = ModelSpec(family=family, config_digest=digest)
        return key_of(RunSpec(method="plain", model=model))

    config = here / "tiny" / "config.json"
    config.parent.mkdir()
    config.write_text('{"model_type": "llama"}')
    first = of("tiny")
    assert {of(str(path)) for path in (config, config.parent, "tiny/config.json")} == {first}
    change(config, '{"model_type": "opt"}')
    assert of("tiny") != first


def test_a_module_counts_with_all_that_it_imports_and_none_of_it_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = RunSpec(method="plain", model=ModelSpec(family="evilpkg.sub.nets:net"))
    package = here / "evilpkg" / "sub"  # without __init__.py
    package.mkdir(parents=True)
    (here / "evilpkg" / "__init__.py").write_text(EVIL)
    (package / "nets.py").write_text(
        f"{EVIL}import json, torch\nfrom ..layers import Block\n"
        "if TYPE_CHECKING:\n    import typed\n"
        "def net(spec):\n    from lazy import more\n    return Block()\n"
    )
    (here / "evilpkg" / "layers.py").write_text(f"{EVIL}import lazy\n")
    for name in ("lazy", "typed", "other"):
        (here / f"{name}.py").write_text(f"{EVIL}from evilpkg import layers\n")  # in a circle
    first = key_of(spec)
    for path in ("lazy.py", "evilpkg/layers.py", "evilpkg/__init__.py", "evilpkg/sub/nets.py"):
        before = key_of(spec)
        change(here / path, (here / path).read_text() + "#\n")
        assert key_of(spec) != before, path
    last = key_of(spec)
    assert len({first, last}) == 2
    for path in ("typed.py", "other.py"):
        change(here / path, EVIL + "#\n")
        assert key_of(spec) == last, path
    sweep = {"base": {"method": "plain", "family": spec.model.family}}
    (here / "s.json").write_text(json.dumps(sweep))
    assert cli.main(["sweep", "s.json", "--dry-run", "--results", str(here / "results")]) == 0
    assert f"pending  {last}" in capsys.readouterr().out
    assert not (here / "ran").exists()
    assert not {"evilpkg", "lazy", "typed", "other"} & sys.modules.keys()


def test_the_code_of_a_method_is_what_it_imports(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for house in methods.HOUSES:
        shutil.copytree(ROOT / house, here / house, ignore=shutil.ignore_patterns("__pycache__"))
    names = ("stronghold", "megatron-lm", "harmony-pp", "data-parallel")
    unchanged = [methods.code_version(name) for name in names]
    monkeypatch.setattr(methods, "_ROOT", here)
    assert [methods.code_version(name) for name in names] == unchanged
    comment = "\n/**/\n"
    for path, others in {
        "workbench/methods/harmony/published/bound.py": ("stronghold", "megatron-lm"),
        "workbench/methods/stronghold/planner.py": names[1:],
        "baselines/rank_main.py": names[:3],  # started by its name
        "workbench/profile/profile.py": (),
        "workbench/native.py": (),
        "workbench/schedule/event_loop.cpp": (),
        "workbench/runs/methods.py": names,
        "workbench/ui/board.py": names,
        "workbench/schedule/README.md": names,
    }.items():
        before = {name: methods.code_version(name) for name in names}
        kept = (here / path).read_text() if (here / path).exists() else ""
        change(here / path, kept + (comment if path.endswith("cpp") else "\n#\n"))
        same = {name for name in names if methods.code_version(name) == before[name]}
        assert same == {*others}, path


def test_a_key_leaves_out_defaults_and_counts_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec(method="plain")
    first = key_of(spec)
    assert key_of(RunSpec(method="plain", clip=1, model=ModelSpec(layers=16))) == first
    assert key_of(resolve(spec)) == first
    assert key_of(spec.with_(clip=2)) != first
    newer = machine.TorchBuild(version="99.0", cuda=None)
    monkeypatch.setattr(machine, "torch_build", lambda: newer)
    assert key_of(spec) != first


def test_many_keys_look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, look = Counter(), methods.code_version
    monkeypatch.setattr(methods, "code_version", lambda name: asked.update([name]) or look(name))
    keys = Keys()
    specs = [RunSpec(method=m, seed=n) for m in ("plain", "stronghold") for n in range(50)]
    assert len({keys.of(spec) for spec in specs}) == 100
    assert asked == {"plain": 1, "stronghold": 1}
