"""Modules, losses, batches and options that an engine refuses in a sentence, or takes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.loops import (
    LR,
    ROWS,
    Net,
    batches,
    in_groups,
    labels_of,
    loss_of,
    made_in,
    net,
)
from workbench import Engine
from workbench.training import loop as driven


def test_what_would_weigh_wrong_is_refused(engine) -> None:
    batch, module = next(batches(padded=True)), net()
    none = {**batch, "labels": batch["labels"].index_fill(0, torch.arange(2), -100)}
    for method, given, words in (
        ("fsdp", none, "in micro-batch 0 of 2"),
        ("plain", {**batch, "labels": batch["labels"] * 0 - 100}, "no label counts in the batch"),
    ):
        made = engine(method, net(frozen=False), microbatches=2, weight_of=labels_of)
        with made, pytest.raises(ValueError, match=words):
            made.step(given, loss_of)
    for groups, words in (
        (in_groups(module)[:1], "blocks.0.norm.weight is in no group"),
        (in_groups(net()), "none of the model's"),
        ([in_groups(module)[0], {**in_groups(module)[1], "lr": 1.0}], "differ in more"),
    ):
        with pytest.raises(ValueError, match=words):
            engine("plain", module, {"lr": LR, "params": groups})


class Choosing(Net):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens[tokens[:, 0] > 3])


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
    made = made_in(tmp_path, method, module)
    with pytest.raises(
        ValueError, match="parameter 'blocks.3.inner.weight' is used in layers .* plain"
    ):
        made.step(next(iter(batches())), loss_of)
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_trained_is_one_sentence(engine) -> None:
    batch, partly, teacher = next(batches()), Net(), Net().requires_grad_(False)
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
        "'num_items_in_batch'; leave it out, batch.pop": (
            Net(),
            batch | {"num_items_in_batch": 3},
            loss_of,
        ),
        "its call, or in loss_fn .*refusals.py:.*, ZeroDiv": (
            Net(),
            batch,
            lambda out, batch: out.mean() / (1 // 0),
        ),
        "parameter 'embed.weight' is float64; .* call model.float": (
            Net().double(),
            batch,
            loss_of,
        ),
        "Sequential: '1.weight' has no shape yet; call the model": (
            nn.Sequential(nn.Embedding(20, 4), nn.LazyLinear(20)),
            batch["tokens"],
            loss_of,
        ),
        "a parameter of .20, 12. that the model does not have; .* a teacher, belongs": (
            Net(),
            batch,
            lambda out, batch: (out - teacher(batch["tokens"])).square().mean(),
        ),
        "one layer": (nn.Linear(4, 4), torch.ones(2, 4), lambda out, batch: out.mean()),
    }
    for words, (module, given, loss) in wrong.items():
        refused = pytest.raises(ValueError, match=words)
        with engine("stronghold", module) as made, refused as raised:
            made.step(given, loss)
        told = vars(raised.value).get("_render_traceback_", list)()
        own = [] if "ZeroDiv" in words else [str(raised.value)]  # a notebook shows frames of theirs
        assert told == own
    with engine("plain") as made:
        made.step(batch, loss_of)
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
        ("stronghold", {"window": 1}, "range; it must be 2 to the number of layers, or auto"),
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


@pytest.mark.parametrize(
    "method", ["plain", "harmony-dp", pytest.param("stronghold", marks=pytest.mark.thorough)]
)
def test_a_loss_that_is_not_the_mean_of_its_parts_is_refused(engine, method) -> None:
    marks = (torch.arange(6) < torch.tensor([[1], [5], [2], [6]])).float()
    batch = next(batches()) | {"marks": marks}
    wanted = masked(net()(batch["tokens"]), batch).item()
    with engine(method, microbatches=2) as made, pytest.raises(ValueError, match="weight_of"):
        made.step(batch, lambda out, batch: loss_of(out, batch) * len(out))
    for weights in (None, lambda batch: batch["marks"].sum(1)):
        with engine(method, microbatches=2, weight_of=weights) as made:
            assert made.step(batch, masked) == pytest.approx(wanted, rel=1e-6)
    one = {"forward_size": ROWS, "backward_size": ROWS} if method == "harmony-dp" else {}
    with engine(method, **one) as made:
        assert made.step(batch, masked) == pytest.approx(wanted, rel=1e-6)


class Annealed:
    rate = 1.0

    def weight(self) -> float:
        return 1 / self.rate


def test_a_loss_that_reads_another_number_than_in_the_first_step_is_refused(
    engine, monkeypatch
) -> None:
    annealed, batch = Annealed(), next(batches())

    def loss(out: Tensor, batch: dict) -> Tensor:
        return loss_of(out, batch) * annealed.weight()

    with engine("stronghold") as made:
        for _ in range(2):
            made.step(batch, loss)
        monkeypatch.setattr(Annealed, "rate", 2.0)
        with pytest.raises(
            ValueError, match=r"number in its 'mul' is 0\.5 now and was 1\), .* row"
        ):
            made.step(batch, loss)
        assert made.steps == 2


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
        "was made with module Net, this engine has Sequential",
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
