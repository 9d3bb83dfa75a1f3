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
from workbench.core import host, methods
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.runs.resolve import Keys, key_of, resolve
from workbench.runs.store import Store
from workbench.runs.sweep import Sweep

ROOT = Path(__file__).resolve().parents[3]
EVIL = "import pathlib\npathlib.Path('ran').write_text(__name__)\n"
PLAIN = RunSpec(method="plain")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    """Seen as a change also where a clock is coarse."""
    stamp = path.stat().st_mtime_ns + 10**9 if path.exists() else 0
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(stamp, stamp))


def test_a_file_is_what_it_says_under_every_path_of_it(here: Path) -> None:
    def of(**names: object) -> str:
        model = ModelSpec(family=str(names.pop("family", "gpt")))
        return key_of(PLAIN.with_(model=model, **{name: str(v) for name, v in names.items()}))

    files = [here / path for path in ("a.txt", "wiki/wiki.train.tokens", "tiny/config.json")]
    asked = [{"text": "a.txt"}, {"text": "wiki"}, {"family": "tiny"}]
    seen = []
    for words in ('{"a": 1}', '{"a": 2}', '{"a": 1}'):
        for file in files:
            write(file, words)
        seen.append([of(**each) for each in asked])
    absolute = [{"text": files[0]}, {"text": here / "wiki"}, {"family": files[2]}]
    assert [of(**each) for each in absolute] == seen[0] == seen[2]
    assert not {*seen[0]} & {*seen[1]}
    assert of(text="missing.txt") != seen[0][0]


def test_a_module_counts_with_all_that_it_imports_and_none_of_it_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = PLAIN.with_(model=ModelSpec(family="evilpkg.sub.nets:net"))
    nets = (
        "import json, torch\nfrom ..layers import Block\nif TYPE_CHECKING:\n    import typed\n"
        "def net(spec):\n    from lazy import more\n    return Block()\n"
    )
    sources = {"evilpkg/__init__": "", "evilpkg/sub/nets": nets, "evilpkg/layers": "import lazy\n"}
    circle = dict.fromkeys(("lazy", "typed", "other"), "from evilpkg import layers\n")
    for path, source in (sources | circle).items():  # sub/ has no __init__.py
        write(here / f"{path}.py", EVIL + source)
    for path, counts in dict.fromkeys((*sources, "lazy"), True).items() | {
        ("typed", False), ("other", False),
    }:  # fmt: skip
        before, file = key_of(spec), here / f"{path}.py"
        write(file, file.read_text() + "#\n")
        assert (key_of(spec) != before) is counts, path
    write(here / "s.json", json.dumps({"base": {"method": "plain", "family": spec.model.family}}))
    assert cli.main(["sweep", "s.json", "--dry-run", "--results", str(here / "results")]) == 0
    assert f"pending  {key_of(spec)}" in capsys.readouterr().out
    assert not (here / "ran").exists()
    assert not {"evilpkg", *circle} & sys.modules.keys()


def test_the_code_of_a_method_is_what_it_imports(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for house in methods.HOUSES:
        shutil.copytree(ROOT / house, here / house, ignore=shutil.ignore_patterns("__pycache__"))
    names = ("stronghold", "megatron-lm", "harmony-pp", "data-parallel")
    unchanged = [methods.code_version(name) for name in names]
    monkeypatch.setattr(methods, "_ROOT", here)
    assert [methods.code_version(name) for name in names] == unchanged
    for path, others in {
        "workbench/methods/harmony/published/bound.py": (*names[:2], names[3]),
        "workbench/methods/stronghold/planner.py": names[1:],
        "workbench/training/trained_ranks.py": (*names[:3],),
        "workbench/training/rank.py": (*names[:2], names[3]),  # started by its name
        "workbench/profile/profile.py": (),
        "workbench/core/native.py": (),
        "workbench/schedule/event_loop.cpp": (),
        "workbench/core/methods.py": names,
        "workbench/ui/runs/table.py": names,
    }.items():
        before = {name: methods.code_version(name) for name in names}
        comment = "\n//\n" if path.endswith("cpp") else "\n#\n"
        write(here / path, (here / path).read_text() + comment)
        same = {name for name in names if methods.code_version(name) == before[name]}
        assert same == {*others}, path


def test_a_key_leaves_out_defaults_counts_torch_and_looks_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = key_of(PLAIN)
    assert key_of(RunSpec(method="plain", clip=1, model=ModelSpec(layers=16))) == first
    assert key_of(resolve(PLAIN)) == first
    assert key_of(PLAIN.with_(clip=2)) != first
    newer = host.TorchBuild(version="99.0", cuda=None)
    monkeypatch.setattr(host, "torch_build", lambda: newer)
    assert key_of(PLAIN) != first
    asked, look, keys = Counter(), methods.code_version, Keys()
    monkeypatch.setattr(methods, "code_version", lambda name: asked.update([name]) or look(name))
    assert len({keys.of(PLAIN.with_(seed=seed)) for seed in range(50)}) == 50
    assert asked == {"plain": 1}


def test_weights_beside_a_configuration_are_not_passed_over_in_silence(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    file, bare = here / "tiny" / "config.json", PLAIN.with_(model=ModelSpec(family="tiny"))
    gpt2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    write(file, json.dumps(gpt2 | {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}))
    for other in ("tokenizer.json", "training_args.bin", "optimizer.pt", "rng_state.pth"):
        (file.parent / other).touch()
    (here / "way.json").symlink_to(file)
    before = key_of(bare)
    for name, words in (
        ("model.safetensors", "cannot be read: No such file"), ("Llama-Q4.GGUF", "none of safe"),
        ("pytorch_model.bin.index.json", "none of safetensors, and a pickle could run anything"),
        ("consolidated.00.pth", "none of safe"),
    ):  # fmt: skip
        weights = file.parent / name
        weights.symlink_to("nowhere")  # as in a cache of downloads, half of it lost
        with pytest.raises(ValueError, match=f"{weights} (is )?{words}"):
            Sweep([bare], Store(here / "r"))
        if name != "consolidated.00.pth":
            weights.unlink()
    for family in ("tiny", "tiny/config.json", "way.json"):
        words = ["-m", "plain", "--hf-config", family, "--results", "r"]
        assert cli.main(["run", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{weights} is none of safetensors" in line
    assert before not in {key_of(bare.with_(weights="random")), key_of(bare.with_(start_from="r"))}
    assert cli.main(["plan", *words, "--machine", "v100-32gb"]) == 0
    assert "the plan holds, but not its run: " in capsys.readouterr().err
