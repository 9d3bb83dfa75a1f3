"""What a method of several ranks would ignore, it refuses."""

from __future__ import annotations

import pytest

from tests.methods.plain import made_up_profile, spec_for
from workbench.runs import methods

VISITED = ("harmony-pp", "harmony-dp", "pp-swap", "dp-swap")


@pytest.mark.parametrize("method", VISITED)
@pytest.mark.parametrize(
    "setting",
    [
        {"optimizer_tier": "disk"},
        {"activations": "host"},
        {"activations": "keep"},
        {"microbatches": 2},
        {"host_workers": 2},
        {"pulled": 1},
        {"disk_layers": 1},
    ],
    ids=str,
)
def test_a_setting_without_a_meaning_is_refused_in_one_sentence(method, setting):
    spec = spec_for(method=method, ranks=2, batch=4, **setting)
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"{name} is {value!r}; with {method} .*leave it at"):
        methods.load(method).plan(spec, made_up_profile(spec))


@pytest.mark.parametrize("setting", [{"optimizer_tier": "host"}, {"activations": "auto"}])
def test_what_it_does_anyway_may_be_asked_for(setting):
    spec = spec_for(method="harmony-pp", ranks=2, batch=4, **setting)
    assert methods.load("harmony-pp").plan(spec, made_up_profile(spec)).fits
