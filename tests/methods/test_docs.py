"""The method of docs/adding-a-method.md, taken from there, is plain training."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from tests.methods.harness import assert_equals_plain, run
from tests.methods.plain import made_up_profile
from workbench.core import methods


@pytest.mark.parametrize(("micro", "clip"), [(2, 0.5), (1, None)])
def test_the_method_of_the_manual_trains_exactly(
    root, spec_for, tmp_path, monkeypatch, micro, clip
):
    page = (root / "docs" / "adding-a-method.md").read_text()
    (code,) = re.findall(r"<!-- method -->\n```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    names = {}
    exec(code, names)
    method = SimpleNamespace(**names)
    monkeypatch.setattr(methods, "PEERS", methods.PEERS | {"alternate": method.METHOD})
    spec = spec_for(method="alternate", microbatches=micro, clip=clip)
    training, parameters = run(method, spec, tmp_path)
    assert_equals_plain(spec, training, parameters)
    planned = method.plan(spec, made_up_profile(spec)).schedule.by_name
    loads = {name for name in planned if name.startswith("L")}
    assert {name.partition("+")[0] for name in loads} == {"L2", "L4"}
