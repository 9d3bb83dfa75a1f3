"""A user's module in the user's own loop trains as torch's loop trains it, under any method."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.loops import (
    LR,
    RANKED,
    ROWS,
    WAYS,
    batches,
    by_torch,
    distance,
    in_groups,
    judged,
    labels_of,
    loss_of,
    near,
    net,
    normed,
    of_outputs,
    others,
    torchs,
    warmed,
)
from workbench.core import methods


@pytest.mark.parametrize("method", WAYS)
def test_steps_are_torchs(engine, method) -> None:
    """With labels that do not count, and groups without decay."""
    module, (wanted, weights) = net(), torchs(in_groups, padded=True)
    config = {"lr": LR, "params": in_groups(module)}
    untouched = {name: value.clone() for name, value in module.state_dict().items()}
    with engine(method, module, config, weight_of=labels_of, **WAYS[method]) as made:
        scheduler, losses = warmed(made.optimizer), []
        for batch in batches(padded=True):
            losses.append(made.step(batch, lambda out, batch: loss_of(out, batch)))
            scheduler.step()
            told = made.evaluate(others(), loss_of)
        found = made.state_dict()
    assert told == pytest.approx(judged(found), rel=1e-6)
    assert losses == pytest.approx(wanted, rel=1e-6)
    near(found, weights)
    assert all(torch.equal(value, untouched[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("method", ["stronghold", "varuna"])
def test_a_model_of_hugging_face_is_torchs(engine, method) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 20}
    config = transformers.LlamaConfig(**sizes, intermediate_size=64, use_cache=False)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).train()
    given = [{"input_ids": b["tokens"], "labels": b["tokens"]} for b in batches(4)]
    wanted, weights = by_torch(model, given, of_outputs, clip=None)
    with engine(method, model, clip=None) as made:
        losses = [made.step(batch, of_outputs) for batch in given]
        near(made.state_dict(), weights)
    assert losses == pytest.approx(wanted, rel=1e-6)


def test_equal_layers_are_compiled_once(engine, counter) -> None:
    """For passes with autograd, and without."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 20}
    config = transformers.LlamaConfig(**sizes, intermediate_size=64, use_cache=False)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).train()
    given = [{"input_ids": b["tokens"], "labels": b["tokens"]} for b in batches(4)]
    wanted, weights = by_torch(model, given, of_outputs)
    options = {"window": 2, "resident": 1, "activations": "recompute"}
    with engine("stronghold", model, **options) as made:
        losses = [made.step(batch, of_outputs) for batch in given]
        near(made.state_dict(), weights)
    assert losses == pytest.approx(wanted, rel=1e-6)
    assert counter.frame_count == 2


def test_every_method_of_the_table_that_takes_steps_is_tried() -> None:
    driven = {row.name: row.driven for row in methods.known().values() if row.driven}
    ahead = {row.driven for row in methods.known().values() if row.asynchronous}
    assert ahead == {"workbench.methods.ftpipe.driven:Streamed"}, "tests/ftpipe/test_stream.py"
    planned = driven.pop("aceso")
    assert planned == "workbench.methods.aceso.driven:planned", "tests/methods/aceso/test_engine.py"
    assert {*driven.values()} - ahead == {driven[name] for name in (*WAYS, *RANKED, "fsdp")}
    ranked = "workbench.training.loop_ranks:Ranked"
    assert {name for name, path in driven.items() if path == ranked} == {*RANKED}
    assert {name for name, path in driven.items() if path == methods.PLANNED} <= {*WAYS}


def test_what_fsdp_trains_is_torchs_and_goes_on_under_stronghold(engine, tmp_path) -> None:
    wanted, weights = torchs(frozen=False, steps=10)
    losses, module = [], net(frozen=False)
    others = torch.distributed.is_initialized()  # a group of a test before is used, and stays
    for method, part in (("fsdp", slice(5)), ("stronghold", slice(5, 10))):
        with engine(method, module, microbatches=2) as made:
            assert made.load(tmp_path) == (part.start or None)
            scheduler = torch.optim.lr_scheduler.LambdaLR(
                made.optimizer, lambda step, made=made: min(1.0, made.steps / 5)
            )
            for batch in [*batches(10)][part]:
                losses.append(made.step(batch, loss_of))
                scheduler.step()
            made.save(tmp_path)
            found = made.state_dict()
        assert torch.distributed.is_initialized() == others
    assert losses == pytest.approx(wanted, rel=1e-6)
    near(found, weights)
    twice, normed = net(frozen=False), net(frozen=False)
    twice.blocks[3].inner.weight = twice.blocks[1].inner.weight
    normed.blocks[2].norm = nn.BatchNorm1d(6)
    for words, wrong in {
        "blocks.1.inner.weight is not trained; fsdp trains all": net(),
        "inner.weight is in layers": twice,
        "has BatchNorm; fsdp": normed,
    }.items():
        with engine("fsdp", wrong) as made, pytest.raises(ValueError, match=words):
            made.step(next(batches()), loss_of)


def test_a_checkpoint_goes_on_under_another_method(engine, tmp_path) -> None:
    whole, later = [], []
    with engine("stronghold", **WAYS["stronghold"]) as first:
        for number, batch in enumerate(batches(6)):
            whole.append(first.step(batch, loss_of))
            if number == 2:
                first.save(tmp_path / "kept")
        wanted = first.state_dict()
    with engine("megatron-lm") as second:
        assert second.load(tmp_path / "kept") == second.steps == 3
        for batch in [*batches(6)][second.steps :]:
            later.append(second.step(batch, loss_of))
        near(second.state_dict(), wanted)
    assert later == pytest.approx(whole[3:], rel=1e-6)
    with engine("l2l", clip=None) as other:
        other.load(tmp_path / "kept")
        with pytest.raises(ValueError, match="with clip 0.5, this engine has None"):
            other.step(next(batches()), loss_of)


def test_a_budget_is_kept_statistics_are_torchs_and_masks_are_everybodys(engine) -> None:
    """Under a budget that holds no whole model; statistics are those of half a batch."""
    (module, data), found = normed(rows=32), {}
    ways = {"plain": {}, "stronghold": {"device_memory": "200KiB"}, "harmony-pp": {}}
    for method, how in ways.items():
        with engine(method, module, microbatches=2, **how) as made:
            losses = [made.step(pair, distance) for pair in data]
            found[method] = losses, made.state_dict()
        assert losses == pytest.approx(found["plain"][0], rel=1e-6)
        near(found[method][1], found["plain"][1])
    assert found["plain"][1]["1.1.num_batches_tracked"] == 2 * len(data)


def test_batchnorm_in_bf16_is_torchs_under_autocast(engine) -> None:
    """But for the weights, which autocast does not round; all else is a rounding apart."""
    module, data = normed(rows=32)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # torch draws other masks
    theirs, losses, wanted = copy.deepcopy(module), [], []
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=LR)
    with engine("plain", module, clip=None, dtype="bf16") as made:
        for pair in data[:3]:
            losses.append(made.step(pair, distance))
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = distance(theirs(pair[0]), pair)
            loss.backward()
            optimizer.step()
            wanted.append(loss.item())
        found = made.state_dict()
    assert losses == pytest.approx(wanted, rel=0.02)
    for name, value in theirs.named_buffers():
        torch.testing.assert_close(found[name], value, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("method", "how"),
    [("plain", {}), ("stronghold", {}), ("harmony-dp", {"forward_size": 8, "backward_size": 8})],
)
def test_a_loss_in_bf16_is_told_as_exactly_as_torch_tells_it(engine, method, how) -> None:
    """Targets of a thousand, of which bf16 knows two digits, and classes. Torch's loop rounds
    weights and inputs, and widens outputs; stronghold rounds some ties of weights otherwise."""
    module, data = normed(batchnorm=False)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # torch draws other masks

    def far(out: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.huber_loss(out, pair[1] + 1000) + F.mse_loss(out, pair[0].mean(1, True))

    def classes(out: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(torch.cat([out, -out], 1), (pair[1][:, 0] > 0).long())

    for loss_fn in (far, classes):
        theirs, wanted = copy.deepcopy(module), []
        optimizer = torch.optim.AdamW(theirs.parameters(), lr=LR)
        for pair in data:
            rounded = copy.deepcopy(theirs).bfloat16()
            loss = loss_fn(rounded(pair[0].bfloat16()).float(), pair)
            loss.backward()
            for one, other in zip(theirs.parameters(), rounded.parameters(), strict=True):
                one.grad = other.grad.float()
            optimizer.step()
            wanted.append(loss.item())
        with engine(method, module, clip=None, dtype="bf16", **how) as made:
            losses = [made.step(pair, loss_fn) for pair in data]
        assert losses == pytest.approx(wanted, rel=1e-4)
        assert losses[0] == pytest.approx(wanted[0], rel=1e-6)


@pytest.mark.parametrize("method", ["plain", "stronghold", "varuna"])
def test_a_step_that_is_done_again_counts_again(engine, tmp_path, method) -> None:
    module, (first, second, *_) = normed()
    with engine(method, module) as made:
        made.step(first, distance)
        made.save(tmp_path)
        loss, wanted = made.step(second, distance), made.state_dict()
        assert made.load(tmp_path) == 1
        assert made.step(second, distance) == loss
        found = made.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("method", ["plain", "harmony-dp"])
def test_loops_as_people_write_them_are_torchs(engine, tmp_path, method) -> None:
    """Without gradients around, from batches made in inference mode, with the states of optimizer
    and scheduler kept beside a checkpoint, and another engine closed meanwhile."""
    wanted, weights = torchs(steps=10)
    with torch.inference_mode():
        given = [*batches(10)]
    first, losses = engine(method), []
    scheduler = warmed(first.optimizer)
    for batch in given[:3]:
        losses.append(first.step(batch, loss_of))
        scheduler.step()
    first.save(tmp_path)
    second = engine(method)
    second.load(tmp_path)
    again = warmed(second.optimizer)
    again.load_state_dict(scheduler.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    for number, batch in enumerate(given[3:]):
        with torch.no_grad() if number % 2 else torch.inference_mode():
            losses.append(second.step(batch, loss_of))
        again.step()
        first.close()
    found = second.state_dict()
    second.close()
    assert losses == pytest.approx(wanted, rel=1e-6)
    near(found, weights)


class Leaky(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(x + super().forward(x), 0.1, 0.9, training=True)


def test_slopes_that_are_drawn_are_those_of_the_gradients(engine) -> None:
    """F.rrelu writes them into a tensor that autograd has noted before."""
    (_, data), found = normed(), []
    x = torch.cat([data[0][0]] * 8, 1)
    for method, how in (
        ("plain", {"activations": "keep"}),
        ("plain", {}),
        ("fsdp", {}),
        ("harmony-pp", {"forward_size": 8, "backward_size": 8}),
    ):
        torch.manual_seed(0)
        module = nn.Sequential(*(Leaky(nn.Linear(64, 64)) for _ in range(4)), nn.Linear(64, 1))
        with engine(method, module, clip=1e9, **how) as made:
            made.step((x, data[0][1]), distance)
            found.append(made.grad_norm)
    assert found == pytest.approx([found[0]] * 4, rel=1e-5)


class Tutorial(nn.Module):
    """Layers in no list, as torch's tutorials write them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3, bias=False), nn.Conv2d(3, 4, 3)
        self.bn, self.fc1 = nn.BatchNorm2d(3), nn.Linear(16, 6)
        self.lstm, self.fc2 = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
        x = F.relu(self.fc1(self.conv2(x).flatten(1)))
        return self.fc2(self.lstm(x[:, None])[0][:, -1])


def test_layers_that_lie_in_no_list_are_torchs(engine) -> None:
    torch.manual_seed(0)
    module, samples = Tutorial(), [torch.rand(ROWS, 1, 10, 10) for _ in range(4)]

    def loss(out: Tensor, _: Tensor) -> Tensor:
        return out.square().mean()

    wanted, weights = by_torch(module, samples, loss, clip=None, lr=1e-3)
    with engine("stronghold", module, {"lr": 1e-3}, clip=None) as made:
        assert [made.step(x, loss) for x in samples] == pytest.approx(wanted, rel=1e-6)
        near(made.state_dict(), weights)


def test_held_out_classes_are_judged_as_torch_judges_them(engine) -> None:
    """Before the first step, too, in evaluation mode; whatever draws random numbers draws on."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 4)
    )
    held = [(torch.randn(rows, 6), torch.randint(4, (rows,))) for rows in (5, 3)]
    before, own = torch.get_rng_state(), copy.deepcopy(module).eval()

    def entropy(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(outputs, batch[1])

    made = engine("plain", module, {"lr": LR})
    with made, torch.no_grad():
        told = made.evaluate(held, entropy)
        right = sum(int((own(x).argmax(-1) == y).sum()) for x, y in held)
        loss = sum(entropy(own(x), (x, y)).item() * len(x) for x, y in held) / 8
        assert told == pytest.approx({"samples": 8, "loss": loss, "accuracy": right / 8})
        assert torch.equal(before, torch.get_rng_state())
        assert module.training
        for batches_, words in {
            (): "no label counts in the batches",
            ((torch.ones(2, 6), torch.ones(3)),): "the batch has tensors of",
            ("words",): "the batch must hold tensors",
        }.items():
            with pytest.raises(ValueError, match=words):
                made.evaluate(batches_, entropy)
        with pytest.raises(ValueError, match="it must return the mean loss, one number"):
            made.evaluate(held, lambda outputs, _: outputs)
    with pytest.raises(ValueError, match="the engine is closed"):
        made.evaluate(held, entropy)
