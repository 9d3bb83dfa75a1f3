"""Plans for people: which profile they hold for, which is best, and what a refusal looks like."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench import cli
from workbench.core import methods
from workbench.core.model_spec import ModelSpec
from workbench.profile import several  # noqa: F401 - which takes the real function of the store
from workbench.profile import store as profiles
from workbench.published.hardware import machine
from workbench.runs import planning
from workbench.runs.overrides import make_spec
from workbench.runs.store import Store
from workbench.schedule.plan import DoesNotFit, Plan


def plan_of(method: str, seconds: float | None, *, fits: bool = True) -> Plan:
    return Plan(
        method=method,
        fits=fits,
        schedule=None,
        step_seconds=seconds,
        peak_bytes={"device": 10},
        moved_bytes={},
        binding="host memory" if not fits else "compute",
    )


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    """Step times by method; None for a method that does not fit."""
    times: dict[str, float | None] = dict.fromkeys(methods.METHODS | methods.PEERS, 2.0)

    def load(name: str) -> SimpleNamespace:
        def plan(spec, profile) -> Plan:
            if times[name] is None:
                raise DoesNotFit(f"{name} needs 9 GiB", tier="host")
            return plan_of(name, times[name])

        return SimpleNamespace(plan=plan)

    monkeypatch.setattr(methods, "load", load)
    monkeypatch.setattr(profiles, "stored_profile", lambda spec, results, echo: None)
    return times


def run_cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict, str]:
    code = cli.main(["plan", "--json", "-l", "4", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_the_fastest_that_fits_is_recommended(seconds, capsys, tmp_path: Path) -> None:
    times = seconds
    times.update({"megatron-lm": None, "l2l": 0.5, "stronghold": 0.25})

    words = ("-b", "8", "--machine", "v100-32gb", "--results", str(tmp_path))
    code, answer, _ = run_cli(capsys, *words)

    assert code == 0
    assert (answer["method"], answer["fits"], answer["step_seconds"]) == ("stronghold", True, 0.25)
    assert answer["samples_per_second"] == 32
    low, high = answer["step_seconds_range"]
    assert 0.7 * 0.25 <= low < 0.25 < high <= 1.3 * 0.25
    assert (answer["profile"], answer["this_machine"]) == ("published", False)
    assert {"fits", "method", "window", "step_seconds", "peak_bytes", "binding"} <= answer.keys()
    told = {other["method"]: other["fits"] for other in answer["methods"]}
    assert told == {name: seconds is not None for name, seconds in times.items()}
    assert list(tmp_path.iterdir()) == []


def test_nothing_fits(seconds, capsys) -> None:
    seconds["l2l"] = None

    code, answer, err = run_cli(capsys, "-m", "l2l")

    assert code == 2
    assert (answer["fits"], answer["lacking"], answer["step_seconds"]) == (False, "host", None)
    assert err.startswith("workbench: nothing fits: l2l needs 9 GiB; fewer layers")


def test_a_stored_profile_of_this_machine_is_preferred(
    seconds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = machine("v100-32gb")
    hardware = replace(known, name="this machine", source="measured", slowdowns={"h2d|host": 1.1})
    here = SimpleNamespace(units=(), origin="", hardware=hardware)
    monkeypatch.setattr(profiles, "stored_profile", lambda spec, results, echo: here)
    spec = make_spec({"method": "l2l", "layers": 4})

    assert planning.answer(spec, Store(tmp_path)).source == "measured"
    assert planning.DISK_ALONE not in planning.answer(spec, Store(tmp_path)).plan.notes
    with_disk = planning.answer(spec.with_(disk_memory=2**30), Store(tmp_path))
    assert (with_disk.source, planning.DISK_ALONE in with_disk.plan.notes) == ("measured", True)
    assert planning.answer(spec, Store(tmp_path), machine="v100-32gb").source == "published"
    with pytest.raises(ValueError, match="no machine 'abacus' is known"):
        planning.answer(spec, Store(tmp_path), machine="abacus")


@pytest.mark.thorough  # of a quarter of the layers: tests/unit/ui/test_planner_panel.py
def test_the_published_question_is_answered_in_seconds(capsys) -> None:
    """Largest model of figure 6a, with the planners and the published constants as they are."""
    words = ("plan", "--layers", "100", "--hidden", "2048", "-m", "stronghold", "--json")
    code = cli.main(
        [*words, "--machine", "v100-32gb", "--device-memory", "32GiB", "--host-memory", "90GiB"]
    )

    answer = json.loads(capsys.readouterr().out)
    assert code == 0
    assert answer["fits"]
    assert 2 <= answer["window"] <= 100
    assert answer["peak_bytes"]["device"] <= 32 * 2**30
    assert answer["peak_bytes"]["host"] <= 90 * 2**30
    assert "busy" in answer["binding"]


def test_why_what_is_stored_is_not_used_is_in_the_plan(tmp_path, monkeypatch):
    def unreadable(spec, results, echo):
        echo("units-1.json is not used, it cannot be read")

    monkeypatch.setattr(profiles, "stored_profile", unreadable)
    found = planning.answer(make_spec({"method": "stronghold", "layers": 2}), Store(tmp_path))
    assert (found.source, found.here) == ("unmeasured", True)
    assert found.plan.notes[-1] == "units-1.json is not used, it cannot be read"


def test_a_hopeless_depth_is_refused_before_a_schedule_is_built(capsys, monkeypatch) -> None:
    asked: list[str] = []

    def plan_from(spec, profiles, soon, rough) -> Plan:
        asked.append(spec.activations)
        return plan_of(spec.method, None, fits=False)

    monkeypatch.setattr(planning, "plan_from", plan_from)
    words = ["--machine", "h100-80gb", "-l", "2000", "--heads", "64", "--hidden"]
    code, answer, err = run_cli(capsys, *words, "65536")
    assert (code, asked) == (2, [])
    assert "weights and optimizer states need 1.099 PiB, all memory" in err
    assert {each["fits"] for each in answer["methods"]} == {False}

    # Where it could be, each method is asked; not also with activations kept, which takes more.
    run_cli(capsys, *words, "2048", "--host-memory", "1200GiB", "--microbatches", "1")
    assert asked == ["auto"] * len(answer["methods"])


def test_every_method_of_several_ranks_is_asked(capsys, tmp_path) -> None:
    """ZeRO among them; one that cannot be asked with these settings hides no other."""
    words = ("--ranks", "2", "-b", "4", "--microbatches", "2", "--machine", "h100-80gb")
    code, answer, _ = run_cli(capsys, *words, "--results", str(tmp_path))

    planned = {each["method"] for each in answer["methods"]}
    assert code == 0
    assert {"zero-offload", "zero-infinity", "1f1b", "data-parallel"} <= planned
    assert planned | answer["not_planned"].keys() == set(methods.compared(2, ModelSpec()))
    assert "leave it at 1" in answer["not_planned"]["harmony-pp"]
