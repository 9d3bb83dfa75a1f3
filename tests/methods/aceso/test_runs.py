"""Runs of operators that are compiled as one, and passes that are recorded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tests.exactness.trained import NEAR
from tests.methods.aceso.plans import MODEL, Rule, even, plan, spec_of, turns
from tests.methods.aceso.test_training import trained
from workbench.core.model_spec import ModelSpec
from workbench.methods.aceso.stepping import settings_of
from workbench.model import make_model
from workbench.model.base import Context
from workbench.model.operators.places import places
from workbench.runtime.passes.shard_stage import TARGETS, Key, MicroRows, ShardStage
from workbench.runtime.transport.stage_groups import StageGroups

DEEP = replace(MODEL, layers=4, dropout=0.0)


def stage(
    spec: ModelSpec, rule: Rule, *, fuses: bool = True, compiled: bool = False, width: int = 1
) -> ShardStage:
    """The whole model, in the first process of some that have no groups."""
    model = make_model(spec, 0)
    made = plan([(width, 3 + 13 * spec.layers, rule)], model=spec)
    operators = made.subject.operators()
    found = ShardStage(
        operators, places(operators, spec), model, spec, first=0,
        settings=settings_of(made.stages[0]), came=[], goes=[],
        groups=StageGroups([{1, 2}], [width], 0, lambda ranks: None), device=torch.device("cpu"),
        dtype=torch.float32, fuses=fuses, compiled=compiled,
    )  # fmt: skip
    units: dict[int, nn.Module] = {}

    def initial(key: Key) -> Tensor:
        if key[0] not in units:
            units[key[0]] = model.build(key[0], seed=0)
        return units[key[0]].get_parameter(key[1])

    found.draw(initial, torch.float32)
    return found


def passed(stage: ShardStage) -> list[Tensor]:
    """The loss of two rows, and all gradients."""
    tokens = torch.arange(18).view(2, 9) * 7 % MODEL.vocab
    inputs = {"0": tokens[:, :-1], TARGETS: tokens[:, 1:]}
    ctx = Context(seed=0, step=0, unit=0, samples=(0, 1))
    stage.begin(0, [MicroRows(inputs, ctx, None)])
    (loss,) = stage.run((), 0, 0)
    loss.backward()
    return [loss.detach(), *(weight.grad for _, weight in stage.parameters())]


@pytest.mark.parametrize(
    ("again", "fuses", "graphs"), [(True, True, 2), (True, False, 3), (False, True, 2)]
)
def test_equal_layers_share_compiled_graphs(again, fuses, graphs, monkeypatch):
    """Layers share a graph, and the last one with the norm behind it has another. Where attention
    is several operators, its softmax is not compiled, and stands between two runs."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    counters.clear()
    wanted = passed(stage(DEEP, even(again=again), fuses=fuses, compiled=False))
    assert not counters["stats"]
    found = passed(stage(DEEP, even(again=again), fuses=fuses, compiled=True))
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    ("width", "rule", "fixed"),
    [(1, even(), True), (2, even(), True), (2, even(2), False), (2, turns(1, 2), False)],
)
def test_passes_are_recorded_where_they_exchange_nothing(width, rule, fixed):
    assert stage(DEEP, rule, width=width).fixed == fixed


@pytest.mark.gpu
@pytest.mark.parametrize("again", [False, True])
def test_recorded_passes_train_as_eager_ones(again, tmp_path):
    """Two micro-batches in flight in front, one behind, and a smaller one at the end of a batch."""
    gpus = torch.cuda.device_count()
    cuts = [(1, 27, even(again=again))] * (gpus > 1) + [(1, 55, even(again=again))]
    made = plan(cuts, micro=2, batch=9, model=DEEP)
    found, wanted = (
        trained(
            spec_of(made, tmp_path / mode, model=DEEP, device="cuda", dtype="bf16", steps=8,
                    eps=1e-6, compile=mode),
            tmp_path / mode / "runs" / "run",
        )
        for mode in ("auto", "off")
    )  # fmt: skip
    assert found.losses == pytest.approx(wanted.losses, rel=NEAR["bf16"][0])
    for name, weight in wanted.weights.items():
        torch.testing.assert_close(found.weights[name], weight, rtol=0, atol=NEAR["bf16"][1])
