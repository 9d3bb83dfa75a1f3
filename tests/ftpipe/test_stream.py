"""An engine takes batches of a user's loop ahead, and trains on declared versions of weights."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from tests.ftpipe.stages import OPTIMIZERS, Delayed, How, Layers, batch, pipeline, rate
from tests.varuna.workers import Workers
from workbench import Engine
from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.operator_graph import Traced, graph_of_operators
from workbench.partition import registered
from workbench.partition.analysis import analyse
from workbench.partition.graph import rows_of
from workbench.partition.methods import Ask, partition
from workbench.profile.operators import operator_costs

STEPS = 8
TWO = {"steps": STEPS, "positions": (0, 1), "micros": 1}
CASES = [
    ((0, 1, 0, 1), 2, "adamw", {}),
    ((1, 0, 0), 1, "sgd", {"own": True}),
    ((0, 1, 0), 1, "adamw", {"net": {"tied": True}, "weight_stashing": True}),
    ((0, 1, 1, 0), 2, "sgd-decay", {"net": {"tied": True}, "own": True}),
    ((0, 1, 1, 0), 1, "adam", {"own": True, "activations": "keep"}),
    ((0, 1, 0), 1, "adamw", {"weight_stashing": True, "gap_aware": True}),
    ((0, 1, 0, 1), 1, "sgd", {"own": True, "prediction": "msnag"}),
    ((0, 1, 0), 2, "adam", {"own": True, "prediction": "aggmsnag", "weight_stashing": True}),
    ((0, 1, 1), 1, "adamw", {"own": True, "prediction": "nag"}),
    ((1, 0, 1), 1, "adamw", {"evaluates": True}),
]


def streamed(*cases: dict) -> list[list[dict]]:
    """Losses and weights of each loop, as both processes tell them."""
    with Workers() as workers:
        told = workers.run("streamed", stages=2, cases=[*cases])
    assert all("each" in one for one in told), told
    return [[one["each"][number] for one in told] for number in range(len(cases))]


def test_losses_and_weights_are_those_of_the_declared_versions(tmp_path):
    """An engine that goes on from a checkpoint made midway trains alike to the last bit."""
    every = [
        {"steps": STEPS, "positions": positions, "micros": micros, "how": "well"}
        | {"folder": str(tmp_path / str(number)), "optimizer": optimizer, **options}
        for number, (positions, micros, optimizer, options) in enumerate(CASES)
    ]
    half = STEPS // 2
    for (positions, micros, optimizer, options), told in zip(CASES, streamed(*every), strict=True):
        how = How(**{name: value for name, value in options.items() if name in asdict(How())})
        how = replace(how, recompute=options.get("activations") != "keep")
        tied = "net" in options
        torch.set_default_dtype(torch.float64)
        reference = Delayed(pipeline(positions, micros, how, tied=tied), optimizer, how, tied=tied)
        losses = [reference.step(step, since=step // half * half) for step in range(STEPS)]
        torch.set_default_dtype(torch.float32)
        for one in told:
            assert one.get("losses") == pytest.approx(losses, rel=1e-10), one
            assert one["untouched"], "the user's own weights stay"
            assert one["resumed"] == half
            assert one["alike"], options
            assert "use engine.stream(loader, loss_fn)" in one["said"]
            for name, wanted in reference.weights().items():
                found = torch.tensor(one["weights"][name], dtype=torch.float64)
                torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    for one in told:  # of weights when four batches were given, and when all steps had ended
        seen = [2, 3, 4], [4, 4, 4], [4, 4, 4], [4, 4, 4]
        wanted = [reference.held_out(versions) for versions in seen]
        assert one["evaluated"] == pytest.approx(wanted, rel=1e-10)


def looped(dtype: torch.dtype, **net: bool) -> tuple[list[float], nn.Module]:
    """Losses of torch's own loop, in bf16 by its autocast, and its module at the end."""
    low = dtype == torch.bfloat16
    torch.set_default_dtype(torch.float32 if low else dtype)
    module, losses = Layers(3, **net), []
    torch.set_default_dtype(torch.float32)
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    for step in range(STEPS):
        x, y = (each.to(next(module.parameters()).dtype) for each in batch(3, step).values())
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            out = module(x)
        loss = (out.to(x.dtype) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate("adamw", step)
        optimizer.step()
        losses.append(loss.item())
    return losses, module


def test_without_staleness_it_is_the_loop_of_torch(tmp_path):
    """With a layer that is called twice and BatchNorm, or a frozen weight of two stages; 1f1b goes
    on from its checkpoint, and statistics of stale stages go on from theirs. In bf16 passes read
    weights of their moment."""
    net = {"called": True, "normed": True}
    like = {"steps": STEPS, "positions": (0, 1, 0), "micros": 1, "how": "well"}
    alone = {"order": "virtual-stages-1f1b", "supremum": 1}
    frozen = {"tied": True, "frozen": True}
    fresh, stale, low, tuned = streamed(
        like | alone | {"folder": str(tmp_path / "fresh"), "then": "1f1b", "net": net},
        like | {"folder": str(tmp_path / "stale"), "net": net},
        like | alone | {"dtype": "bf16"},
        like | alone | {"net": frozen, "prediction": "msnag"},
    )
    losses, module = looped(torch.float64, **net)
    rounded, _ = looped(torch.bfloat16)
    assert all(one.get("losses") == pytest.approx(rounded, rel=1e-5) for one in low), low
    wanted, _ = looped(torch.float64, **frozen)
    assert all(one.get("losses") == pytest.approx(wanted, rel=1e-10) for one in tuned), tuned
    for one, other in zip(fresh, stale, strict=True):
        assert one.get("losses") == pytest.approx(losses, rel=1e-10), one
        assert one["again"] == pytest.approx(losses[STEPS // 2 :], rel=1e-10)
        for name, wanted in module.state_dict().items():
            found = torch.tensor(one["weights"][name], dtype=wanted.dtype)
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
        assert other.get("alike"), other
        assert other["untouched"]
        assert other["weights"]["layers.1.1.num_batches_tracked"] == STEPS
        assert other["losses"] != one["losses"]


def test_updates_by_gradients_that_are_not_finite_are_left_out_and_told():
    (told,) = streamed(TWO | {"how": "wild"})
    assert "updates of single stages are left out, since" in told[0]["errors"], told[0]
    for one in told:
        assert not all(map(math.isfinite, one["losses"]))
        assert all(torch.tensor(value).isfinite().all() for value in one["weights"].values())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("killed", "RankFailed: rank 1: its process has ended, in "),
        ("raises", "RankFailed: rank 1: no such luck"),
    ],
)
def test_a_rank_that_fails_ends_the_stream_of_the_other(how, words):
    with Workers() as workers:
        told = workers.run("streamed", stages=2, cases=[TWO | {"how": how}])
    assert told[0]["each"][0].get("said", "").startswith(words), told


def test_what_a_stream_cannot_do_is_refused_by_all():
    net = {"tied": True}
    cases = {
        "stage_order is 'seq', which ends with each step": {"order": "seq"},
        "prediction msnag with ASGD: its steps are not known, use SGD": {
            "own": True, "optimizer": "unknown", "prediction": "msnag",
        },
        "stage 1 borrows a weight of stage 0, whose updates it does": {
            "net": net, "prediction": "nag",
        },
        "gap_aware with 2 micro-batches an update": {
            "micros": 2, "gap_aware": True, "weight_stashing": True,
        },
        "partition is 'none'; registered: ": {"partition": "none"},
    }  # fmt: skip
    told = streamed(*(TWO | {"how": "well", **options} for options in cases.values()))
    for words, both in zip(cases, told, strict=True):
        for one in both:
            assert one.get("said", "").startswith(f"ValueError: {words}"), one


def test_an_optimizer_that_no_stage_can_have_is_refused():
    def engine(make, config=None, method="ftpipe"):
        return Engine(nn.Linear(2, 2), config or {}, method=method, optimizer=make)

    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    for words, ask in {
        "optimizer makes a list; give a function of parameters": lambda: engine(list),
        "LBFGS wants a closure": lambda: engine(torch.optim.LBFGS),
        "has lr 0.2 beside an optimizer of your own": lambda: engine(sgd, {"lr": 0.2}),
        "has 'betas' beside": lambda: engine(sgd, {"lr": 0.1, "betas": (0.9, 0.9)}),
        "optimizer is a function; plain has AdamW": lambda: engine(sgd, method="plain"),
    }.items():
        with pytest.raises(ValueError, match=words):
            ask()


def test_steps_that_do_not_overlap_are_streamed_one_by_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    data = [(torch.randn(3, 4), torch.randn(3, 2)) for _ in range(3)]

    def distance(outputs, batch):
        return (outputs - batch[1]).square().mean()

    found = []
    for streams in (True, False):
        with Engine(model, {"lr": 0.1}, method="plain", device="cpu", quiet=True) as engine:
            losses = engine.stream(data, distance)
            found.append([*losses] if streams else [engine.step(each, distance) for each in data])
    assert found[0] == found[1]


def test_stages_of_calls_train_on_the_declared_versions(tmp_path):
    """As a registered partition has them; a module with other calls is refused."""
    model = ModelSpec(family="tests.ftpipe.stages:make", layers=3)
    spec = RunSpec.of(method="ftpipe", model=model, batch=4, device="cpu")
    traced, stage = Traced(spec, basic=(), depth=None), {}
    costs = operator_costs(traced.operators, traced.inputs, "cpu")
    for one in traced.operators:
        stage[one.name] = max(stage.values(), default=-1) + (".layers." in one.name)
    graph = graph_of_operators(traced.module, traced.operators, costs, recompute=True)
    ask, places = Ask(method="pipedream", devices=2), [0, 1, 0]
    device = {name: places[at] for name, at in stage.items()}
    found = replace(partition(graph, ask), stage=stage, device=device, stage_to_device=places)
    one = registered.made(
        name="calls", task=model.family, model=model, samples=4, dtype="fp32", ask=ask,
        settings={}, costs="", graph=rows_of(graph), stage=stage, device=device, cut=[], map=places,
        calls=traced.sets(stage), checked="",
        analysis=analyse(graph, found, bandwidth=12.0, cheap_last=False),
    )  # fmt: skip
    registered.write(tmp_path, one)
    case = {"steps": STEPS, "micros": 1, "how": "well", "partition": "calls", "layers": 3}
    case |= {"results": str(tmp_path)}
    told, other = streamed(case, {**case, "layers": 4})
    how, half = How(), STEPS // 2
    torch.set_default_dtype(torch.float64)
    reference = Delayed(pipeline((0, 1, 0), 1, how), "adamw", how)
    losses = [reference.step(step, since=step // half * half) for step in range(STEPS)]
    torch.set_default_dtype(torch.float32)
    for each in told:
        assert each.get("losses") == pytest.approx(losses, rel=1e-10), each
    assert "of the module is none of the partition's" in other[0]["said"]
