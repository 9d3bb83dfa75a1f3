"""The notebook that fine-tunes, cell after cell, on the folder that it makes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_it_trains_evaluates_exports_and_writes(
    root: Path, tmp_path: Path, measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import IPython

    import workbench.ui.live_run as live  # matplotlib takes seconds

    shown: list[str] = []

    def display(one: Any, **_: Any) -> SimpleNamespace:
        shown.append(one.data)
        return SimpleNamespace(update=lambda other: shown.append(other.data))

    monkeypatch.setattr(live, "EVERY_S", 0.0)
    monkeypatch.setattr(live, "WORDS_S", -1.0)
    monkeypatch.setattr(live, "display", display)
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=None))
    shutil.copytree(measured, tmp_path / "profiles")
    source = (root / "notebooks" / "finetune.py").read_text()
    for name, value in {"steps": 12, "results": f'"{tmp_path}"'}.items():
        source = re.sub(rf"^({name}: \w+) = \S+", rf"\1 = {value}", source, flags=re.MULTILINE)
    code, _, last = source.rstrip().rpartition("\n")
    names: dict[str, Any] = {}
    exec(code, names)
    record, answer = names["record"], eval(last, names)
    assert record.status == "ok"
    assert record.losses[-1] < record.losses[0] - 0.1
    assert [one["step"] for one in record.evaluations] == [2, 4, 6, 8, 10, 12]
    assert record.evaluations[-1]["loss"] < record.evaluations[0]["loss"]
    words = [one for one in shown if one.startswith("<p>")]
    assert len(shown) - len(words) > 2, "it was drawn while the run went on"
    assert words[-1].startswith("<p>stronghold: ok, ")
    for phase in ("planned: ", "step 12/12, loss "):
        assert any(phase in one for one in words), words
    assert names["exported"].dtype == "bf16"
    assert answer.startswith(names["prompt"])
