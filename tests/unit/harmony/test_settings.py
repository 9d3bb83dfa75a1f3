"""A method of several ranks refuses the settings that it would ignore."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.methods.plain import MODEL, made_up_profile, spec_for
from workbench.core import methods
from workbench.core.division import PP
from workbench.methods.harmony import planner
from workbench.methods.harmony.problem import PackingProblem
from workbench.runs.overrides import make_spec
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE, HOST_TIER

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
        {"window": 2},
        {"resident": 1},
        {"link_bytes_per_s": 1e9},
        {"disk_memory": 1 << 30},
    ],
    ids=str,
)
def test_a_setting_without_a_meaning_is_refused_in_one_sentence(method, setting):
    ((name, value),) = setting.items()

    with pytest.raises(ValueError, match=f"{name} is {value!r}; with {method} .*leave it at"):
        spec_for(method=method, ranks=2, batch=4, **setting)


@pytest.mark.parametrize("setting", [{"optimizer_tier": "host"}, {"activations": "auto"}])
def test_what_it_does_anyway_may_be_asked_for(setting):
    spec = spec_for(method="harmony-pp", ranks=2, batch=4, **setting)
    assert methods.load("harmony-pp").plan(spec, made_up_profile(spec)).fits


@pytest.mark.parametrize("mode", ["pp", "dp"])
@pytest.mark.parametrize("written", ["none", ""])
def test_one_pack_that_a_plan_prints_can_be_pinned_again(mode, written):
    pins = {"forward_size": 2, "backward_size": 2, "backward_packs": str(MODEL.layers + 2)}
    spec = make_spec(
        {"method": f"harmony-{mode}", "model": MODEL.to_dict(), "ranks": 2, "batch": 4}
        | {**pins, "forward_packs": written}
    )
    found = planner.plan(spec, {2: made_up_profile(spec.with_(batch=2))}, mode=mode)
    assert {name: found.settings[name] for name in pins} == pins
    assert found.settings["forward_packs"] == spec.options.forward_packs == ""


@pytest.mark.parametrize(
    ("forward", "backward", "sentence"),
    [
        ("2", "4 3", "forward_packs '2' hold 2 units; they should hold 4, all before the last"),
        ("1", "7", "forward_packs '1' hold 1 units; they should hold 0, all before the last"),
        ("none", "4 3", "forward_packs is 'none', backward_packs '4 3'; only where one"),
    ],
)
def test_packs_that_leave_units_out_are_named(forward, backward, sentence):
    pins = {"forward_size": 2, "backward_size": 2, "batch": 4, "ranks": 2}
    pins |= {"forward_packs": forward, "backward_packs": backward}
    with pytest.raises(ValueError, match=sentence):
        planner.check(spec_for(method="harmony-pp", **pins), "pp")


@pytest.mark.parametrize(("replay", "tier", "tried"), [
    ("auto", DEVICE, [True, False]), ("on", DEVICE, [True]), ("auto", HOST_TIER, [True]),
])  # fmt: skip
def test_passes_that_leave_no_room_when_recorded_are_not_unless_asked_for(
    monkeypatch, replay, tier, tried
):
    """Recordings work in memory of their own: 0.35 GiB of 1 GiB, of a model of 6 billion."""
    seen = []

    def search(setting, *_, **__):
        seen.append(setting.recorded_below_s > 0)
        if seen[-1]:
            raise DoesNotFit("too large", tier=tier)
        return "found"

    monkeypatch.setattr(planner, "search", search)
    spec = spec_for(method="harmony-pp", replay=replay)
    setting = PackingProblem(
        mode=PP, ranks=1, minibatch=2, device_bytes=1, host_bytes=1, recorded_below_s=1.0
    )
    asked = spec, setting, replace(setting, recorded_below_s=0.0), None, None
    if tried[-1]:
        with pytest.raises(DoesNotFit):
            planner._searched(*asked)
    else:
        assert planner._searched(*asked) == "found"
    assert seen == tried
