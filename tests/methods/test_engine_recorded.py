"""Layers of a user's module are recorded where they can be, and train as launched ones do."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.loops import LR, Block, batches, by_torch, loss_of, near, net, of_outputs
from tests.methods.taped import Taped, on_tapes
from workbench.model.objective import Batch, Objective
from workbench.profile import variants
from workbench.profile.alone import Setting
from workbench.profile.profile import Hardware
from workbench.profile.units import RECORDED, UnitCost, Variant
from workbench.profile.variants import with_recorded
from workbench.runtime.memory.device_budget import CudaMeter
from workbench.runtime.passes import recorded_blocks
from workbench.schedule import buffers as name
from workbench.training import loop, module_profile

STAY = {"window": 5, "resident": 5, "pulled": 0, "activations": "keep", "microbatches": 2}
MOVE = {"window": 2, "resident": 1, "activations": "recompute", "microbatches": 2}
EPS = 1e-6
"""AdamW's: with 1e-8 it makes steps of roundings."""
SCALE = 1.0
GPU = Hardware(
    name="made up", source="measured", device="cuda", cores=2, device_bytes=8 << 30,
    host_bytes=8 << 30, h2d_bytes_per_s=1e10, d2h_bytes_per_s=1e10, host_adam_params_per_s=1e9,
    device_adam_params_per_s=1e10, matmul_flops_per_s=1e14,
)  # fmt: skip


class Scaled(Block):
    """Its code reads a variable beside the module."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return super().forward(x, scale) * SCALE


def scaled() -> nn.Module:
    made = net()
    for block in made.blocks:
        block.__class__ = Scaled
    return made


def llama(hidden: int = 32, layers: int = 4, **sizes: int) -> nn.Module:
    """Layers of four kinds: what flows beside hidden states differs at both ends and the norm."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{"num_attention_heads": 4, "vocab_size": 20, **sizes}, hidden_size=hidden,
        num_hidden_layers=layers, intermediate_size=2 * hidden, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


def for_llama(given: list[dict]) -> list[dict]:
    return [{"input_ids": each["tokens"], "labels": each["tokens"]} for each in given]


@pytest.fixture
def tapes(monkeypatch) -> type[Taped]:
    """Recordings where no GPU is, in plans for one that has timed them."""

    def timed(*asked, **how):
        profile = module_profile.profile_of(*asked, **how)
        own = (Variant(name=RECORDED, seconds=(1e-6, 1e-6, 2e-6)),)
        units = [replace(cost, variants=own, forward_s=1e-5) for cost in profile.units]
        hardware = replace(profile.hardware, device="cuda")
        return replace(profile, units=tuple(units), hardware=hardware)

    monkeypatch.setattr(loop, "profile_of", timed)
    monkeypatch.setattr(recorded_blocks, "Replays", made := on_tapes(monkeypatch))
    return made


@pytest.mark.parametrize("how", [STAY, MOVE], ids=["one chain", "chains of one"])
@pytest.mark.parametrize("make", [net, llama])
def test_recorded_layers_train_as_torch_does(engine, tapes, make, how) -> None:
    """With what flows beside hidden states, a layer that is not trained, and buffers."""
    given, loss_fn = [*batches(4)], loss_of
    if make is llama:
        given, loss_fn = for_llama(given), of_outputs
    wanted, weights = by_torch(make(), given, loss_fn, eps=EPS)
    with engine("stronghold", make(), {"lr": LR, "eps": EPS}, **how) as made:
        losses = [made.step(batch, loss_fn) for batch in given]
        near(made.state_dict(), weights)
        assert name.REPLAYS in made.plan.schedule.buffers
    assert losses == pytest.approx(wanted, rel=1e-6)
    (replays,) = tapes.made
    assert replays.passes > 0


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("how", [STAY, MOVE], ids=["one chain", "chains of one"])
def test_smaller_batches_are_launched(engine, tapes, monkeypatch, how, room) -> None:
    """Beside recordings, or instead of them where memory is short."""
    monkeypatch.setattr(
        Taped, "nbytes", property(lambda _: 0 if room else 1 << 64, lambda *_: None), raising=False
    )
    given = [*batches(5)]
    given[2] = {name: tensor[:3] for name, tensor in given[2].items()}
    wanted, weights = by_torch(net(), given)
    with engine("stronghold", net(), **how) as made:
        losses = [made.step(batch, loss_of) for batch in given[:2]]
        before = tapes.made[0].passes
        if room:
            losses.append(made.step(given[2], loss_of))
        else:
            with pytest.warns(UserWarning, match="smaller than the first one.* no memory for both"):
                losses.append(made.step(given[2], loss_of))
        assert tapes.made[0].passes == before
        losses += [made.step(batch, loss_of) for batch in given[3:]]
        assert (tapes.made[0].passes > before) is room
        near(made.state_dict(), weights)
    assert losses == pytest.approx(wanted, rel=1e-6)


def test_code_that_reads_another_variable_is_not_recorded_any_more(
    engine, tapes, monkeypatch, capsys
) -> None:
    given = [*batches(4)]

    def losses_of(step) -> list[float]:
        monkeypatch.setattr(f"{__name__}.SCALE", 1.0)
        found = [step(batch) for batch in given[:2]]
        monkeypatch.setattr(f"{__name__}.SCALE", 0.5)
        return found + [step(batch) for batch in given[2:]]

    torchs = scaled()
    optimizer = torch.optim.AdamW(torchs.parameters(), lr=LR)

    def by_author(batch) -> float:
        optimizer.zero_grad()
        loss = loss_of(torchs(batch["tokens"]), batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    wanted = losses_of(by_author)
    with engine("stronghold", scaled(), clip=None, **MOVE) as made:
        losses = losses_of(lambda batch: made.step(batch, loss_of))
    assert losses == pytest.approx(wanted, rel=1e-6)
    assert tapes.made[0].passes == 2 * 2 * 5 * 2
    assert "'SCALE', which blocks read, is another than when" in capsys.readouterr().err


class Spared(Block):
    """Does something else while passes are recorded, as code does that waits for a GPU."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        made = super().forward(x, scale)
        return made if torch.cuda.is_current_stream_capturing() else made.tanh()


@pytest.mark.parametrize(
    ("kind", "dtype", "wrong"),
    [
        (Block, "fp32", ""),
        (Scaled, "fp32", ""),
        (Spared, "fp32", "1, 'module.blocks.0': a recorded pass of it gives other numbers than"),
        (Block, "bf16", "0, 'module.embed': it puts out torch.float32 of [4, 1, 1], planned as"),
    ],
)
def test_a_recording_is_tried_before_it_is_planned(tapes, monkeypatch, kind, dtype, wrong) -> None:
    """It is compared with launched passes, and must read what other layers put out."""
    monkeypatch.setattr(variants, "Replays", tapes)
    module, given = net(), next(iter(batches()))
    for block in module.blocks:
        block.__class__ = kind
    model, _ = Objective(module, loss_of, first := Batch(given)).layered()
    *inputs, targets = (*first.tensors, first.weights)
    how = {"seq": 1, "dtype": dtype, "device": "cpu"}
    setting = Setting.of(model, tuple(inputs), targets, **how)
    costs = {
        kind: UnitCost(kind=kind, parameters=1, forward_s=1e-5, recompute_s=1e-5, backward_s=1e-5)
        for kind in map(model.kind, range(model.num_units))
    }
    found, why = with_recorded(costs, setting)
    middle = {model.kind(unit) for unit in range(1, model.head)}
    timed = {kind for kind, cost in found.items() if cost.variant(RECORDED)}
    assert timed == (set() if wrong else middle)
    assert why.startswith(wrong and f"layer {wrong}"), why
    assert bool(why) is bool(wrong)


def test_layers_are_alike_whatever_they_hand_on() -> None:
    """The first layer of a decoder and the last are compiled with those between them."""
    (given,) = for_llama([*batches(1)])
    model, _ = Objective(llama(), of_outputs, Batch(given)).layered()
    assert len({model.kind(unit) for unit in range(1, 5)}) == 3
    assert model.repeated == [1, 2, 3, 4]


class Hooked(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.Tanh())
        self.register_forward_hook(lambda module, given, made: None)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), "draws random numbers"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), "has BatchNorm"),
        (Hooked, "has a hook on its forward pass"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()), ""),
    ],
)
def test_layers_that_no_recording_stands_for_say_why(block, why) -> None:
    module = nn.Sequential(nn.Linear(8, 8), *(block() for _ in range(2)), nn.Linear(8, 1))
    first = Batch((torch.randn(4, 8), torch.randn(4, 1)))
    model, _ = Objective(module, lambda out, pair: F.mse_loss(out, pair[1]), first).layered()
    assert model.varies.startswith(f"layer 1, 'module.1', {why}" if why else "")
    assert bool(model.varies) is bool(why)


@pytest.fixture
def train(engine, monkeypatch):
    """Losses, weights and the plan of an engine on a GPU, whose rates nobody measures."""
    monkeypatch.setattr(module_profile, "hardware", lambda *asked: GPU)
    monkeypatch.setenv("TORCHINDUCTOR_DETERMINISTIC", "1")

    def trained(module, given, loss_fn, *, records: bool, **how):
        how |= {"device": "cuda"}
        with monkeypatch.context() as patch:
            if not records:
                patch.setattr(module_profile, "with_recorded", lambda costs, setting: (costs, ""))
            with engine("stronghold", module, {"lr": LR, "eps": EPS}, **how) as made:
                losses = [made.step(batch, loss_fn) for batch in given]
                return losses, made.state_dict(), made.plan

    return trained


@pytest.mark.gpu
@pytest.mark.parametrize("how", [STAY, MOVE], ids=["one chain", "chains of one"])
def test_recordings_change_no_bit(train, how) -> None:
    """Compares layers that are compiled; the next test takes layers that are not."""
    draw = torch.Generator().manual_seed(1)
    tokens = [torch.randint(512, (4, 128), generator=draw) for _ in range(5)]
    given, make = for_llama([{"tokens": each} for each in tokens]), partial(llama, 256)
    how = {"dtype": "bf16", **how}
    one = train(make(vocab_size=512), given, of_outputs, records=False, **how)
    other = train(make(vocab_size=512), given, of_outputs, records=True, **how)
    assert_alike(one, other)


def assert_alike(launched, recorded) -> None:
    """To the bit."""
    (losses, weights, one), (found, own, other) = launched, recorded
    assert other.notes == ()
    assert name.REPLAYS in other.schedule.buffers
    assert name.REPLAYS not in one.schedule.buffers
    assert found == losses
    assert all(torch.equal(own[key], value) for key, value in weights.items())


@pytest.mark.gpu
@pytest.mark.parametrize("how", [STAY, MOVE], ids=["one chain", "chains of one"])
def test_a_gpu_launches_smaller_batches(train, monkeypatch, how) -> None:
    """With memory for recordings besides, and without, where they are let go."""
    given = [*batches(5)]
    given[2] = {name: tensor[:3] for name, tensor in given[2].items()}
    launched = train(net(), given, loss_of, records=False, **how)
    assert_alike(launched, train(net(), given, loss_of, records=True, **how))
    monkeypatch.setattr(CudaMeter, "left", 0)
    with pytest.warns(UserWarning, match="no memory for both"):
        recorded = train(net(), given, loss_of, records=True, **how)
    assert_alike(launched, recorded)


class Copies(Block):
    """Takes numbers from the host in each pass, which no recording can."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return super().forward(x, scale) * torch.tensor([SCALE, 1.0]).to(x.device)[0]


@pytest.mark.gpu
def test_what_cannot_be_recorded_is_launched_and_said(train, capsys) -> None:
    """It leaves nothing behind: neither memory, nor a generator that believes in a recording."""
    module, given = net(), [*batches(4)]
    for block in module.blocks:
        block.__class__ = Copies
    wanted, weights, _ = train(copy.deepcopy(module), given, loss_of, records=False, **MOVE)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    capsys.readouterr()
    losses, found, plan = train(module, given, loss_of, records=True, **MOVE)
    assert name.REPLAYS not in plan.schedule.buffers
    (note,) = plan.notes
    assert "blocks are launched one kernel after the other, since one cannot be recorded" in note
    assert "layer 1, 'blocks.0': " in note
    assert note in capsys.readouterr().err
    assert losses == wanted
    assert all(torch.equal(found[key], value) for key, value in weights.items())
    assert bool(torch.randn(8, device="cuda").isfinite().all())
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (8 << 20)
