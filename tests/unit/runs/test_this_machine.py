"""Plans are for this machine, and another one is named first: fit, times, files of machines."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench import cli
from workbench.core import methods
from workbench.core.bytesize import parse_bytes
from workbench.core.model_spec import ModelSpec
from workbench.exhibits import open_exhibit
from workbench.profile import several  # noqa: F401 - which takes the real function of the store
from workbench.profile import store as profiles
from workbench.profile.machine import Machine
from workbench.profile.timing import BRIEF
from workbench.published import machines
from workbench.runs import device_locks, planning
from workbench.runs.expected import LAYERS_S, START_S, expected, with_record
from workbench.runs.overrides import make_spec
from workbench.runs.store import Store
from workbench.ui import previewer
from workbench.ui.planner import words as planner_words
from workbench.ui.planner.control import Question, Reply
from workbench.ui.planner.work import PlannerWork
from workbench.ui.sweeps.control import SweepControl
from workbench.ui.sweeps.preview import PreviewPoint

BOX = Machine(
    device="cpu", processor="A box", cores=2, memory_bytes=parse_bytes("23.5GiB"), gpu=None,
    gpu_bytes=0, torch="2",
)  # fmt: skip
GAMER = Machine(
    device="cuda", processor="A box", cores=8, memory_bytes=parse_bytes("64GiB"),
    gpu="NVIDIA GeForce RTX 4090", gpu_bytes=parse_bytes("23.99GiB"), torch="2",
)  # fmt: skip
TINY = ("-l", "2", "--hidden", "64", "--heads", "2", "--seq", "32", "--vocab", "64")


def here(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """This machine is another one, of which nothing was measured."""
    monkeypatch.setattr(machines, "this_machine", lambda device: machine)
    monkeypatch.setattr(profiles, "stored_profile", lambda spec, results, echo: None)
    monkeypatch.setattr(machines, "ceilings", lambda *_, **__: None)


def test_on_a_box_without_measurements_memory_is_its_own_and_no_time_is_told(
    monkeypatch, tmp_path: Path, capsys
) -> None:
    """A V100's 31.25 GiB are not asked, whatever budget is given."""
    here(monkeypatch, BOX)
    store = Store(tmp_path)
    asked = make_spec({"method": "plain", "layers": 24, "microbatches": 1})
    found = planning.answer(asked, store)
    assert (found.here, found.plan.fits, found.plan.step_seconds) == (True, False, None)
    assert "GiB, the budget is 10.57 GiB" in found.plan.binding
    more = planning.answer(asked.with_(device_memory=64 << 30, batch=16), store)
    assert "the budget is 23.5 GiB, all that this machine has" in more.plan.binding
    both = asked.with_(method="stronghold", device_memory=23 << 30, host_memory=23 << 30)
    assert "this machine has 23.5 GiB" in planning.answer(both, store).plan.binding
    assert planning.answer(asked, store, machine="v100-32gb").plan.fits

    assert cli.main(["plan", "-m", "plain", *TINY, "--results", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "on this machine (A box, 2 cores; unmeasured)\n  this machine has not been" in told
    assert "no times are told: `workbench plan --measure` measures it" in told
    assert cli.main(["plan", *TINY, "--device-memory", "4KiB", "--results", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "the budget is 4 KiB\n" in told.out
    assert "lines above say why" in told.err
    words = ["plan", "-m", "plain", *TINY, "--machine", "v100-32gb", "--results", str(tmp_path)]
    assert cli.main(words) == 0
    assert "on v100-32gb, which is not this machine" in capsys.readouterr().out


def test_the_page_and_the_preview_judge_by_this_machine(monkeypatch, tmp_path: Path) -> None:
    here(monkeypatch, BOX)
    for machine, fits in ((None, False), ("v100-32gb", True)):
        question = Question.of(method="plain", layers=24, machine=machine)
        fields = PlannerWork(Store(tmp_path)).work_on(question, 0)
        reply = Reply.from_dict(json.loads(json.dumps(fields)), question)
        assert (reply.row.fits, reply.here) == (fits, machine is None)
        named = planner_words.headline(reply).startswith("On v100-32gb, which is not this machine:")
        assert named == (machine is not None)
    data = {"base": {"method": "plain"}, "grid": {"layers": [24, 32]}}
    lines = previewer.fits(data, str(tmp_path), [0, 1], 60.0)
    control = SweepControl(Store(tmp_path), helper=SimpleNamespace())
    control.form.set(method="plain", layers="24, 32")
    control.preview.points = [
        PreviewPoint(what="plain", key="", state="pending", fits=line["fits"], why=line["why"])
        for line in lines
    ]
    why = control.why_not()["start"]
    assert why.startswith("none of the 2 runs can fit this machine, by the planner: plain: device")
    control.preview.points[0].fits = True
    assert control.why_not()["start"] == "", "the other one ends out of memory, a result"


def test_a_gpu_that_is_known_is_estimated_by_its_datasheet(monkeypatch, tmp_path: Path) -> None:
    here(monkeypatch, GAMER)
    asked = make_spec({"method": "stronghold", "layers": 4, "dtype": "bf16"})
    found = planning.answer(asked, Store(tmp_path))
    assert (found.here, found.source) == (True, "estimated")
    assert "with rates of rtx4090-24gb: by the datasheet of NVIDIA GeForce RTX 4090" in found.basis
    other = planning.answer(asked, Store(tmp_path), machine="rtx4090-24gb")
    assert found.plan.step_seconds == pytest.approx(other.plan.step_seconds, rel=0.1)


def test_a_saved_machine_is_planned_for_by_its_name(examined, tmp_path: Path, capsys) -> None:
    doctor = ["doctor", "--stored", "--device", "cpu", "--results", str(examined.results)]
    assert cli.main([*doctor, "--save", "mine", "--out", str(tmp_path / "machines")]) == 0
    plan = ["plan", "-m", "plain", *TINY, "--json", "--results", str(tmp_path), "--machine"]
    capsys.readouterr()
    for name in ("mine", str(tmp_path / "machines" / "mine.json")):
        assert cli.main([*plan, name]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["hardware"], told["this_machine"]) == ("mine", False)
        assert told["step_seconds"] > 0
    assert machines.names(tmp_path)[-1] == "mine"
    by_hand = tmp_path / "box.json"
    by_hand.write_text('{"like": "rtx4090-24gb", "host_bytes": "128GiB"}')
    found = machines.find(str(by_hand), tmp_path).hardware
    assert (found.name, found.host_bytes) == ("box", 128 << 30)
    assert cli.main([*doctor, "--save", "../mine"]) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object"),
        ('{"like": "rtx"}', "like is 'rtx'; it must be one of v100-32gb"),
        ('{"like": "h100-80gb", "host_bytes": "1G"}', "'1G' is not an amount"),
        ('{"like": "h100-80gb", "cores": 0}', "cores is 0; it must be more than 0"),
        ('{"like": "h100-80gb", "h2d": 3}', "unknown field 'h2d'"),
        ('{"flops_per_s": {"fp32": 1e12}}', "the field 'cores' is missing"),
        ('{"like": "h100-80gb", "flops_per_s": {"fp64": 1}}', "flops_per_s is {'fp64': 1.0}"),
    ],
)
def test_a_malformed_machine_is_one_sentence(text: str, why: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert cli.main(["plan", *TINY, "--machine", str(tmp_path / "bad.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"workbench: the machine file {tmp_path}/bad.json")
    assert why in line


def configuration(folder: Path) -> Path:
    """A small decoder of Hugging Face."""
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 256}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


@pytest.mark.parametrize("theirs", [False, True], ids=["gpt", "hugging-face"])
def test_layers_are_measured_without_training(
    theirs, measured, tmp_path: Path, monkeypatch, capsys
) -> None:
    shutil.copytree(measured, tmp_path / "profiles")
    monkeypatch.chdir(tmp_path)
    model = ["--hf-config", configuration(Path()).name] if theirs else TINY  # from where we are
    words = ["plan", "-m", "plain", *model, "--device", "cpu", "--results", str(tmp_path)]
    assert cli.main([*words, "--measure", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["profile"], told["basis"]) == ("measured", "")
    assert not (tmp_path / "runs").exists()
    held = device_locks.take(device_locks.lockable_devices("cpu"), 1, "a run of a test")
    try:
        assert cli.main([*words, "--measure"]) == 2
    finally:
        held.release()
    assert "holds the processors, and both" in capsys.readouterr().err


def test_records_of_earlier_runs_count_and_a_start_is_assumed(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr("workbench.runs.expected.device_class", lambda device: "cpu:a box")
    spec = make_spec({"method": "plain", "layers": 8, "steps": 5, "device": "cpu"})
    shape = {**spec.model.to_dict(), "layers": 4, "batch": 4, "microbatches": 1, "ranks": 1}
    row = {
        **shape, "method": "plain", "status": "ok", "device_class": "cpu:a box", "seconds": 50.0,
        "step_seconds": 3.0, "steps_done": 10,
    }  # fmt: skip
    assert expected(spec, None, [row]) == (20.0 + 5 * 6.0, "records")
    assert expected(spec, None, [{**row, "hidden": 64}]) == (None, "")
    assert expected(spec, None, [{**row, "device_class": "cuda:another"}]) == (None, "")
    planned = SimpleNamespace(source="estimated", plan=SimpleNamespace(step_seconds=1.0))
    assert expected(spec, planned, []) == (START_S + LAYERS_S + 5.0, "estimated")
    assert expected(spec, planned, [row])[1] == "records"
    here(monkeypatch, BOX)
    told = with_record(planning.answer(spec, Store(tmp_path)), [{**row, "key": "a run"}])
    assert told.plan.notes[-1] == "3 s a step in run a run, of 4 layers"


def test_times_of_a_claim_are_told_once_the_machine_is_examined(examined, tmp_path: Path) -> None:
    before = open_exhibit("9", "smoke", tmp_path).preview()
    assert before["time"].iloc[-1] == "?"
    assert 'not measured here yet, which "Examine this machine"' in before["note"].iloc[-1]
    shutil.copytree(examined.results / "profiles", tmp_path / "profiles")
    assert "?" not in set(open_exhibit("9", "smoke", tmp_path).preview()["time"])


def test_each_method_is_asked_at_its_best_plain_torch_too(tmp_path: Path, capsys) -> None:
    """On a device with room for all, what only recomputes by default is no slower."""
    words = ["plan", "-l", "4", "--machine", "h100-80gb", "--results", str(tmp_path)]
    assert cli.main([*words, "--device-memory", "60GiB", "--json"]) == 0
    told = {each["method"]: each for each in json.loads(capsys.readouterr().out)["methods"]}
    assert list(told) == methods.compared(1, ModelSpec()) == [*methods.METHODS, *methods.PEERS]
    for name in ("megatron-lm", "plain"):
        assert told[name]["activations"] == "keep"
        assert told[name]["step_seconds"] == pytest.approx(
            told["stronghold"]["step_seconds"], rel=0.02
        )
    assert cli.main([*words, "-m", "plain", "--activations", "recompute", "--json"]) == 0
    fixed = json.loads(capsys.readouterr().out)
    assert fixed["step_seconds"] > 1.2 * told["plain"]["step_seconds"]

    question = Question.of(machine="h100-80gb", layers=4, method="plain")
    fields = PlannerWork(Store(tmp_path)).work_on(question, 0)
    reply = Reply.from_dict(fields, question)
    assert reply.row.label == "plain torch, activations kept"
    assert reply.run_spec().activations == "keep"


def test_a_pipeline_is_asked_with_several_micro_batches(tmp_path: Path, capsys) -> None:
    words = ["plan", *TINY, "-l", "6", "-b", "8", "--ranks", "2", "--machine", "v100-32gb"]
    for method in ("gpipe", "interleaved", "torch-1f1b"):
        assert cli.main([*words, "-m", method, "--results", str(tmp_path)]) == 0
        told = capsys.readouterr().out
        assert re.search(r"tokens/s.*, in [248] micro-batches of [421], chosen;", told)
    assert cli.main([*words, "-m", "torch-interleaved", "--results", str(tmp_path)]) == 2
    assert "how is not predicted; a run measures it" in capsys.readouterr().err


def test_the_largest_model_is_the_last_that_fits(tmp_path: Path, capsys) -> None:
    words = ["plan", "--largest", "-m", "plain", "--machine", "v100-32gb", "--json"]
    assert cli.main([*words, *TINY, "--device-memory", "6MiB", "--results", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    shape = {"method": "plain", "hidden": 64, "heads": 2, "seq": 32, "vocab": 64}
    more = make_spec({**shape, "layers": told["layers"] + 1, "device_memory": 6 << 20})
    assert not planning.fits(more, Store(tmp_path), "v100-32gb")
    spec = make_spec({**shape, "layers": told["layers"]})
    assert told["layers"] > 1
    assert told["parameters"] == spec.model.parameters
    assert told["tokens_per_second"] == pytest.approx(4 * 32 / told["step_seconds"])
    assert told["peak_bytes"]["device"] <= 6 << 20


def test_the_largest_model_of_one_memory_fits_in_it(monkeypatch, tmp_path: Path, capsys) -> None:
    """Without a GPU device and host share the memory, whatever the budgets say."""
    here(monkeypatch, BOX)
    words = ["plan", "--largest", "-m", "stronghold", "--hidden", "2048", "--json"]
    budgets = ["--device-memory", "24GiB", "--host-memory", "64GiB", "--results", str(tmp_path)]
    assert cli.main([*words, *budgets]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["layers"] > 8
    assert sum(told["peak_bytes"].values()) <= BOX.memory_bytes


def test_one_memory_is_divided_for_the_largest_model(monkeypatch, tmp_path: Path, capsys) -> None:
    """Between device and host as is best for each method; told budgets hold, and no others do with
    a layer more."""
    box = replace(BOX, memory_bytes=600 << 20)
    here(monkeypatch, box)
    shape = {"hidden": 768, "heads": 4, "seq": 128, "vocab": 512}
    flags = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    words, store, found = ["plan", *flags, "--results", str(tmp_path)], Store(tmp_path), {}
    for method in ("stronghold", "l2l", "plain", "zero-offload"):
        assert cli.main([*words, "--largest", "-m", method, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        layers = found[method] = told["layers"]
        budgets = next(note for note in told["notes"] if "one memory" in note).split(": ")[1]
        again = ["-m", method, "-l", str(layers), *budgets.split(), "--json"]
        assert cli.main([*words, *again]) == 0
        assert sum(json.loads(capsys.readouterr().out)["peak_bytes"].values()) <= sum(box.tiers())
        more = make_spec({**shape, "method": method, "layers": layers + 1})
        for device in range(45, 540, 45):
            spec = more.with_(device_memory=device << 20, host_memory=540 - device << 20)
            assert not planning.fits(spec, store), (method, device)
    assert found["stronghold"] >= found["l2l"] > found["zero-offload"]


def test_each_method_on_one_device_plans_a_decoder_of_hugging_face(tmp_path: Path, capsys) -> None:
    words = [
        "plan",
        "--hf-config",
        str(configuration(tmp_path)),
        "--device-memory",
        "64MiB",
        "--json",
    ]
    assert cli.main([*words, "--machine", "h100-80gb", "--results", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["method"] for each in told["methods"]] == methods.compared(1, ModelSpec())
    assert not told["not_planned"]


def test_methods_that_search_are_asked_for_their_largest_model_too(tmp_path: Path, capsys) -> None:
    words = ["plan", "--largest", "--ranks", "2", "--machine", "h100-80gb", "--json", *TINY]
    budgets = ["--device-memory", "65MiB", "--host-memory", "4MiB", "--results", str(tmp_path)]
    assert cli.main([*words, *budgets]) == 0
    told, err = capsys.readouterr()
    assert "harmony-pp, harmony-dp, pp-swap, dp-swap search at each depth" in err
    found = json.loads(told)
    layers = {each["method"]: each["layers"] for each in found["methods"] if each["fits"]}
    shape = {"hidden": 64, "heads": 2, "seq": 32, "vocab": 64, "ranks": 2}
    shape |= {"device_memory": 65 << 20, "host_memory": 4 << 20}
    for method in ("harmony-pp", "harmony-dp", "pp-swap", "dp-swap"):
        fit = make_spec({**shape, "method": method, "layers": layers[method]})
        more = fit.with_(model=replace(fit.model, layers=layers[method] + 1))
        assert planning.fits(fit, Store(tmp_path), "h100-80gb"), method
        assert not planning.fits(more, Store(tmp_path), "h100-80gb", soon=True), method
    assert not {"harmony-pp", "harmony-dp", "pp-swap", "dp-swap"} & found["not_planned"].keys()


def test_several_devices_are_asked_on_the_page(tmp_path: Path) -> None:
    shape = {"layers": 2, "hidden": 64, "heads": 2, "seq": 32, "vocab": 64}
    budgets = {"device_memory": 68 << 20, "host_memory": 4 << 20}
    question = Question.of(machine="h100-80gb", ranks=2, **budgets, **shape)
    assert "--ranks 2" in question.command()
    work = PlannerWork(Store(tmp_path))
    while not (fields := work.work_on(question, 60.0))["done"]:
        pass
    rows = {row.method: row for row in Reply.from_dict(fields, question).rows}
    assert list(rows) == methods.compared(2, ModelSpec())
    assert {"data-parallel", "1f1b", "harmony-pp"} <= {name for name in rows if rows[name].fits}
    assert rows["torch-zero-bubble"].refused, "torch plans it by itself"
    for method in ("harmony-pp", "harmony-dp", "pp-swap", "dp-swap"):
        assert 2 <= rows[method].largest_layers < 20
        assert not rows[method].largest_open


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        ("stronghold --device-memory 8GiB --host-memory 16GiB", "--host-memory"),
        ("l2l --device-memory 5GiB -b 32 --microbatches 1", "--microbatches"),
    ],
)
def test_where_nothing_fits_the_last_line_has_a_command_that_does(asked, change, tmp_path, capsys):
    shape = f"-l 40 --seq 512 --hidden 2048 --dtype bf16 --results {tmp_path}"
    assert cli.main(f"plan --machine a100-80GB {shape} -m {asked}".split()) == 2
    told, _, command = capsys.readouterr().err.splitlines()[-1].rpartition(": workbench ")
    assert re.search(rf"; with {change} \d+\w* {asked.split()[0]} fits$", told)
    assert cli.main(shlex.split(command)) == 0
    assumed = "host memory assumed: 256 GiB"
    assert (assumed in capsys.readouterr().out) == ("--host-memory" not in command)


def test_a_plan_measures_a_machine_that_is_not_known(monkeypatch, examined, tmp_path, capsys):
    """Once, and nothing where that is not wanted; then all methods tell times."""
    monkeypatch.delenv(BRIEF)
    both = examined.results / "profiles", tmp_path / "profiles"
    monkeypatch.setattr(planning, "measure", lambda *_: shutil.copytree(*both))
    words, told = ["plan", *TINY, "--device", "cpu", "--results", str(tmp_path)], []
    for more in (["--no-measure"], [], []):
        assert cli.main([*words, *more]) == 0
        out, err = capsys.readouterr()
        told.append(("unknown time a step" in out, "it is measured, once" in err))
    assert told == [(True, False), (False, True), (False, False)]
