"""A user's module in the user's own loop trains as torch's loop trains it, under any method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.varuna.workers import Workers
from workbench import Engine
from workbench.core import methods
from workbench.methods import driven

ROWS, STEPS, CLIP, LR = 4, 20, 0.5, 1e-2
WAYS = {
    "plain": {},
    "megatron-lm": {"microbatches": 2},
    "l2l": {"microbatches": 2, "activations": "host"},
    "stronghold": {"window": 2, "resident": 1},
    "varuna": {"microbatches": 2},
    "harmony-pp": {"microbatches": 2},
}
"""Options of methods whose rows in the table say how a loop drives them."""
RANKED = {
    "harmony-pp": {"microbatches": 2},
    "harmony-dp": {"forward_size": 2, "backward_size": 1},
    "pp-swap": {},
    "dp-swap": {"forward_size": 1},
}
"""Options of methods whose schedules have several ranks, each a process of torchrun."""


class Block(nn.Module):
    """Takes a number of the sample's from the first layer, which passes all blocks."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(hidden), nn.Linear(hidden, hidden)
        self.register_buffer("by", torch.rand(1))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + F.gelu(self.inner(self.norm(x))) * scale * self.by


class Net(nn.Module):
    """Blocks unlike each other in a buffer; the head has the embedding's weight, and the second
    block's matrix is not trained."""

    def __init__(self, hidden: int = 12, blocks: int = 5, vocab: int = 20) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(blocks))
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.blocks[1].inner.weight.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, scale = self.embed(tokens), (tokens > 3).float().mean(1)[:, None, None]
        for block in self.blocks:
            x = block(x, scale)
        return self.head(x)


def net(*, frozen: bool = True) -> Net:
    torch.manual_seed(0)
    return Net() if frozen else Net().requires_grad_(True)


def batches(
    steps: int = STEPS, rows: int = ROWS, *, padded: bool = False
) -> Iterator[dict[str, Tensor]]:
    """Labels of `padded` ones end after one to six tokens."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        tokens = torch.randint(20, (rows, 7), generator=generator)
        ends = torch.randint(1, 7, (rows, 1), generator=generator) if padded else 6
        labels = tokens[:, 1:].where(torch.arange(6) < ends, -100)
        yield {"tokens": tokens[:, :-1], "labels": labels}


def in_groups(module: nn.Module) -> list[dict]:
    """As most people train: matrices decay, norms and biases do not."""
    every = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in every if p.dim() > 1], "weight_decay": 0.3},
        {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0},
    ]


def labels_of(batch: dict[str, Tensor]) -> Tensor:
    return (batch["labels"] != -100).sum(1)


def loss_of(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def warmed(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5))


def torchs(
    groups: Callable | None = None, *, frozen: bool = True, **how
) -> tuple[list[float], dict[str, Tensor]]:
    """The loop that anybody would write."""
    module, losses = net(frozen=frozen), []
    optimizer = torch.optim.AdamW((groups or nn.Module.parameters)(module), lr=LR)
    scheduler = warmed(optimizer)
    for batch in batches(**how):
        optimizer.zero_grad()
        loss = loss_of(module(batch["tokens"]), batch)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, module.state_dict()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Makes an engine; this machine is measured once for all."""
    return partial(_engine, tmp_path_factory.mktemp("results"))


def _engine(
    results, method: str, module: nn.Module | None = None, config: dict | None = None, **options
) -> Engine:
    module = module or net()
    options = {"clip": CLIP, "device": "cpu", "results": results, **options}
    return Engine(module, config or {"lr": LR}, method=method, **options)


def near(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", WAYS)
def test_twenty_steps_are_torchs(engine, method) -> None:
    module, (wanted, weights) = net(), torchs()
    untouched = {name: value.clone() for name, value in module.state_dict().items()}
    with engine(method, module, **WAYS[method]) as made:
        scheduler, losses = warmed(made.optimizer), []
        for batch in batches():
            losses.append(made.step(batch, lambda out, batch: loss_of(out, batch)))
            scheduler.step()
        found = made.state_dict()
    assert losses == pytest.approx(wanted, rel=1e-6)
    near(found, weights)
    assert all(torch.equal(value, untouched[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("method", ["l2l", "varuna"])
def test_labels_that_do_not_count_and_groups_without_decay_are_torchs(engine, method) -> None:
    wanted, weights = torchs(in_groups, steps=6, padded=True)
    module = net()
    config = {"lr": LR, "params": in_groups(module)}
    with engine(method, module, config, weight_of=labels_of, **WAYS[method]) as made:
        scheduler, losses = warmed(made.optimizer), []
        for batch in batches(6, padded=True):
            losses.append(made.step(batch, loss_of))
            scheduler.step()
        found = made.state_dict()
    assert losses == pytest.approx(wanted, rel=1e-6)
    near(found, weights)


def test_what_would_weigh_wrong_is_refused(engine) -> None:
    batch, module = next(batches(padded=True)), net()
    with engine("plain", microbatches=2) as made, pytest.raises(ValueError, match="give weight_of"):
        made.step(batch, loss_of)
    none = {**batch, "labels": batch["labels"].index_fill(0, torch.arange(2), -100)}
    made, words = engine("plain", microbatches=2, weight_of=labels_of), "in micro-batch 0 of 2"
    with made, pytest.raises(ValueError, match=words):
        made.step(none, loss_of)
    for groups, words in (
        (in_groups(module)[:1], "blocks.0.norm.weight is in no group"),
        (in_groups(net()), "none of the model's"),
        ([in_groups(module)[0], {**in_groups(module)[1], "lr": 1.0}], "differ in more"),
    ):
        with pytest.raises(ValueError, match=words):
            engine("plain", module, {"lr": LR, "params": groups})


@pytest.mark.parametrize("method", ["stronghold", "varuna"])
def test_a_model_of_hugging_face_is_torchs(engine, method) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 20}
    config = transformers.LlamaConfig(**sizes, intermediate_size=64, use_cache=False)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).train()
    theirs, losses, wanted = copy.deepcopy(model), [], []
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=LR)
    with engine(method, model, clip=None) as made:
        for batch in batches(4):
            batch = {"input_ids": batch["tokens"], "labels": batch["tokens"]}
            losses.append(made.step(batch, lambda outputs, _: outputs.loss))
            optimizer.zero_grad()
            loss = theirs(**batch).loss
            loss.backward()
            optimizer.step()
            wanted.append(loss.item())
        near(made.state_dict(), theirs.state_dict())
    assert losses == pytest.approx(wanted, rel=1e-6)


def test_every_method_of_the_table_that_takes_steps_is_tried() -> None:
    driven = {row.name: row.driven for row in methods.known().values() if row.driven}
    assert {*driven.values()} == {driven[name] for name in (*WAYS, *RANKED, "fsdp")}
    assert {name for name, path in driven.items() if path == methods.RANKED} == {*RANKED}
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
        with pytest.raises(ValueError, match="with clip 0.5, this run has None"):
            other.step(next(batches()), loss_of)


def normed(batchnorm: bool = True, rows: int = 8) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A module with BatchNorm and dropout, and pairs as batches."""
    torch.manual_seed(0)
    parts, norm = [nn.Linear(8, 64, False)], nn.BatchNorm1d if batchnorm else nn.LayerNorm
    for _ in range(4):
        inner = nn.Linear(64, 64, False), norm(64), nn.Dropout(0.2), nn.Tanh()
        parts.append(nn.Sequential(*inner))
    data = [(torch.randn(rows, 8), torch.randn(rows, 1)) for _ in range(5)]
    return nn.Sequential(*parts, nn.Linear(64, 1)), data


def distance(out: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(out, pair[1])


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


class Choosing(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens[tokens[:, 0] > 3])


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


class Remembering(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        self.seen = getattr(self, "seen", 0) + 1
        return super().forward(tokens) * self.seen


@pytest.mark.parametrize("method", ["stronghold", "l2l"])
def test_middle_layers_that_share_weights_are_refused_unmeasured(
    tmp_path, monkeypatch, method
) -> None:
    monkeypatch.setattr(driven, "profile_of", None)  # measuring would be a TypeError
    module = net()
    module.blocks[3].inner.weight = module.blocks[0].inner.weight
    made = _engine(tmp_path, method, module)
    with pytest.raises(
        ValueError, match="parameter 'blocks.3.inner.weight' is used in layers .* plain"
    ):
        made.step(next(iter(batches())), loss_of)
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_trained_is_one_sentence(engine) -> None:
    batch, partly = next(batches()), Net()
    partly.blocks[2].eval()
    wrong = {
        "takes tokens": (Net(), {"words": batch["tokens"]}, loss_of),
        "counts its samples": (
            Net(),
            {"tokens": batch["tokens"], "labels": torch.ones(3)},
            loss_of,
        ),
        "it must return the mean loss": (Net(), batch, lambda out, batch: out),
        "choose with torch.where": (Choosing(), batch, loss_of),
        "in every forward pass": (Remembering(), batch, loss_of),
        "is in evaluation mode; call": (Net().eval(), batch, loss_of),
        "'blocks.2' is in evaluation mode, which": (partly, batch, loss_of),
        "loss_fn is None; give a": (Net(), batch, None),
        "its call, or in loss_fn, ZeroDiv": (
            Net(),
            batch,
            lambda out, batch: out.mean() / (1 // 0),
        ),
        "one layer": (nn.Linear(4, 4), torch.ones(2, 4), lambda out, batch: out.mean()),
    }
    for words, (module, given, loss) in wrong.items():
        with engine("stronghold", module) as made, pytest.raises(ValueError, match=words):
            made.step(given, loss)
    with engine("plain") as made:
        made.step(batch, loss_of)
        with pytest.raises(ValueError, match="leave out a last batch"):
            made.step(next(batches(rows=3)), loss_of)
        with pytest.raises(ValueError, match="another function"):
            made.step(batch, lambda out, batch: loss_of(out, batch) * 2)
        torch.optim.lr_scheduler.OneCycleLR(made.optimizer, 0.1, total_steps=9)
        with pytest.raises(ValueError, match="beta1 of the optimizer is .*cycle_momentum=False"):
            made.step(batch, loss_of)
    module = net()
    with engine("plain", module) as made:
        made.step(batch, loss_of)
        module.embed.weight.requires_grad_(False)
        with pytest.raises(ValueError, match="has requires_grad False now, and had True"):
            made.step(batch, loss_of)
    for method, config, words in (
        ("zero-infinity", {}, "1 process; megatron-lm, l2l, stronghold, plain, fsdp do"),
        ("plain", {"amsgrad": True}, "amsgrad is on"),
        ("plain", {"momentum": 1}, "momentum"),
        ("plain", None, "optimizer_config is a NoneType; give a dictionary"),
        ("plain", torch.optim.AdamW(net().parameters()), "optimizer_config is a AdamW; give"),
    ):
        with pytest.raises(ValueError, match=words):
            Engine(net(), config, method=method)


@pytest.mark.parametrize(
    ("method", "how", "words"),
    [
        ("harmony-dp", {"microbatches": 2, "forward_size": 1}, "has 2 of the 4 .*_size is 1; give"),
        ("stronghold", {"activations": "recompute", "kept": 2}, "kept is 2 and activations 'rec"),
        ("megatron-lm", {"activations": "host"}, "activations cannot be 'host'"),
        ("gpipe", {"activations": "host"}, "activations is 'host'; gpipe keeps"),
        ("varuna", {"microbatches": 1, "micro": 2}, "micro is 2; in a loop of one's own"),
    ],
)
def test_no_option_silently_wins_over_another(engine, method, how, words) -> None:
    with engine(method, **how) as made, pytest.raises(ValueError, match=words):
        made.step(next(batches()), loss_of)


def test_options_that_agree_are_taken_and_groups_say_their_own_rate(engine) -> None:
    """As a module of more layers than a spec has by default may say their numbers."""
    module, batch = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20))), torch.ones(4, 4)
    theirs, groups = copy.deepcopy(module), {"lr": 0.1, "betas": (0.5, 0.6)}
    optimizer = torch.optim.AdamW([{"params": [*theirs.parameters()], **groups}])
    theirs(batch).square().mean().backward()
    optimizer.step()
    wanted = theirs(batch).square().mean().item()
    for method, how in (
        ("harmony-dp", {"microbatches": 2, "forward_size": 2}),
        ("stronghold", {"window": 18}),
    ):
        config = {"lr": 9.0, "params": [{"params": [*module.parameters()], **groups}]}
        with engine(method, module, config, clip=None, **how) as made:
            _, loss = (made.step(batch, lambda out, _: out.square().mean()) for _ in range(2))
        assert loss == pytest.approx(wanted, rel=1e-5)


def masked(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The mean over tokens that the batch marks by ones, and not by labels of -100."""
    losses = F.cross_entropy(logits.flatten(0, 1), batch["tokens"].flatten(), reduction="none")
    return (losses.view_as(batch["marks"]) * batch["marks"]).sum() / batch["marks"].sum()


@pytest.mark.parametrize("method", ["plain", "stronghold", "harmony-dp"])
def test_a_loss_that_is_not_the_mean_of_its_parts_is_refused(engine, method) -> None:
    marks = (torch.arange(6) < torch.tensor([[1], [5], [2], [6]])).float()
    batch = next(batches()) | {"marks": marks}
    wanted = masked(net()(batch["tokens"]), batch).item()
    for loss_fn in (masked, lambda out, batch: loss_of(out, batch) * len(out)):
        with engine(method, microbatches=2) as made, pytest.raises(ValueError, match="weight_of"):
            made.step(batch, loss_fn)
    with engine(method, microbatches=2, weight_of=lambda batch: batch["marks"].sum(1)) as made:
        assert made.step(batch, masked) == pytest.approx(wanted, rel=1e-6)
    one = {"forward_size": ROWS, "backward_size": ROWS} if method == "harmony-dp" else {}
    with engine(method, **one) as made:
        assert made.step(batch, masked) == pytest.approx(wanted, rel=1e-6)


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


def test_a_closed_engine_and_a_folder_without_checkpoints_are_no_fresh_start(
    engine, tmp_path
) -> None:
    batch = next(batches())
    with engine("plain") as made:
        made.step(batch, loss_of)
        step = made.save(tmp_path)
        with pytest.raises(ValueError, match="step-00000001 holds no checkpoints; give the folder"):
            made.load(step)
        assert made.load(tmp_path / "none yet") is None, "so that a first start is like all others"
        assert made.load(tmp_path) == 1
    other = engine("plain", nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
    assert other.load(tmp_path) == 1
    for words in (
        "was made with family engine:Net",
        "closed",
    ):  # and not trained anew when asked again
        with pytest.raises(ValueError, match=words):
            other.step(torch.ones(4, 6), lambda out, _: out.mean())
    for ask in (
        made.state_dict,
        lambda: made.step(batch, loss_of),
        lambda: made.save(tmp_path),
        lambda: made.load(tmp_path),
    ):
        with pytest.raises(ValueError, match="is closed, and its weights are gone"):
            ask()


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
    module = Tutorial()
    ours, samples = copy.deepcopy(module), [torch.rand(ROWS, 1, 10, 10) for _ in range(4)]
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=1e-3), []
    for x in samples:
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with engine("stronghold", ours, {"lr": 1e-3}, clip=None) as made:
        found = [made.step(x, lambda out, _: out.square().mean()) for x in samples]
        assert found == pytest.approx(losses, rel=1e-6)
        near(made.state_dict(), module.state_dict())


@pytest.mark.parametrize(("stages", "replicas"), [(2, 1), (1, 2)])
def test_two_processes_train_it_as_one_does(stages, replicas) -> None:
    wanted, weights = torchs(in_groups, padded=True)
    with Workers() as workers:
        told = workers.run("driven", stages=stages, replicas=replicas)
    for one in told:
        assert one.get("losses") == pytest.approx(wanted, rel=1e-6), one
        near({name: torch.tensor(value) for name, value in one["weights"].items()}, weights)


@pytest.mark.parametrize("method", [*RANKED, "fsdp"])
def test_ranks_train_it_and_one_process_goes_on(engine, tmp_path, method) -> None:
    frozen = method != "fsdp"
    wanted, weights = torchs(in_groups, frozen=frozen, padded=True)
    how = {"method": method, "save": str(tmp_path), "results": str(engine.args[0])}
    how |= RANKED.get(method, {"microbatches": 2})
    ranks = 4 if method == "dp-swap" else 2  # the middle ones' labels are not the others' first
    with Workers() as workers:
        told = workers.run("driven", stages=1, replicas=ranks, **how)
    for one in told:
        assert one.get("losses") == pytest.approx(wanted, rel=1e-6), one
        near({name: torch.tensor(value) for name, value in one["weights"].items()}, weights)
        assert not one["left"]
    module, half = net(frozen=frozen), STEPS // 2
    config = {"lr": LR, "params": in_groups(module)}
    with engine("plain", module, config, weight_of=labels_of) as made:
        assert made.load(tmp_path) == half
        later = [made.step(batch, loss_of) for batch in [*batches(padded=True)][half:]]
        near(made.state_dict(), weights)
    assert later == pytest.approx(wanted[half:], rel=1e-6)


@pytest.mark.parametrize("method", ["harmony-pp", "harmony-dp", "fsdp"])
def test_two_ranks_go_on_with_statistics_masks_and_weights_of_bf16(
    engine, tmp_path, method
) -> None:
    """With BatchNorm a micro-batch has the rows of a process unless told; bf16 is without, and
    fsdp, whose sums of bf16 are fp32."""
    own = method == "fsdp"
    for dtype, near_by in (("fp32", 1e-6), ("bf16", 2e-3))[: 1 if own else 2]:
        (module, data), losses, kept = normed(dtype == "fp32" and not own), [], tmp_path / dtype
        rate = {
            "lr": LR if dtype == "fp32" else LR / 10
        }  # so that roundings of gradients tell less
        with engine("plain", module, rate, microbatches=2, dtype=dtype) as made:
            for pair in data:
                losses.append(made.step(pair, distance))
                if made.steps == 2:
                    made.save(kept)
            wanted, norm = made.state_dict(), made.grad_norm
        how = {"dtype": dtype, **rate, "results": str(engine.args[0]), "kept": str(kept)}
        with Workers() as workers:
            told = workers.run("goes_on", stages=1, replicas=2, method=method, **how)
        for one in told:
            assert one.get("losses") == pytest.approx(losses[2:], rel=near_by), one
            assert one["norm"] == pytest.approx(norm, rel=5 * near_by)
            for name, value in wanted.items():
                found = torch.tensor(one["weights"][name])
                torch.testing.assert_close(found, value, rtol=10 * near_by, atol=10 * near_by)


@pytest.mark.parametrize(
    ("method", "how", "words"),
    [
        ("harmony-dp", "raises", "RankFailed: rank 1: no such luck"),
        ("harmony-pp", "killed", "RankFailed: rank 1: its process has ended, in step 2"),
        ("pp-swap", "closed", "RankFailed: rank 1: it has closed its engine, in step 2"),
        ("fsdp", "raises", "RankFailed: rank 1: no such luck"),
        ("fsdp", "killed", "RankFailed: rank 1: its process has ended, in step 2"),
        ("fsdp", "uneven", "ValueError: rank 0 is in step 2 and rank 1 is in state_dict; all"),
        ("varuna", "raises", "RankFailed: rank 1: no such luck"),
        ("varuna", "closed", "RankFailed: rank 1: it has closed its engine, in step 2"),
        ("harmony-dp", "stopped", "RankFailed: rank 1: it is stopped, and has not"),
        ("harmony-pp", "fewer", "ValueError: the processes have different numbers of rows"),
        ("harmony-pp", "stages", "ValueError: stages is 2; leave it out"),
        ("dp-swap", "small", "DoesNotFit: "),
        ("harmony-pp", "lacks", "OutOfMemory: the host tier is out of memory: all needs 9 B"),
    ],
)
def test_a_rank_that_fails_ends_the_other(engine, method, how, words) -> None:
    results = str(engine.args[0])
    with Workers() as workers:
        told = workers.run("failing", stages=1, replicas=2, method=method, results=results, how=how)
    assert told[0]["said"].startswith(words), told
    assert how != "stopped" or told[0]["said"].endswith("in step 2"), told
    if how in ("fewer", "stages", "small", "lacks", "uneven"):  # before there is anything to train
        assert told[1] == told[0]


@pytest.mark.parametrize("method", ["harmony-dp", "fsdp", "varuna"])
def test_a_rank_that_is_stopped_is_named_wherever_it_is_and_another_engine_trains(
    engine, method
) -> None:
    """All ranks pass equal rows, so losses are those of one."""
    with Workers() as workers:
        told = workers.run(
            "stopped", stages=1, replicas=2, method=method, results=str(engine.args[0])
        )
    places = ("planning the first step", "step 1", "save", "load", "state_dict")
    words = "RankFailed: rank 1: it is stopped, and has not moved for 0 s, in "
    assert told[0].get("told") == [words + place for place in places], told
    with engine("plain", net(frozen=method != "fsdp"), clip=None) as made:
        wanted = [made.step(batch, loss_of) for batch in batches(2)]
    assert told[0]["losses"] == pytest.approx(wanted, rel=1e-6)
