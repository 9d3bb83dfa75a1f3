"""Engines of models with a large vocabulary, and how much of them is compared before they train."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.methods.loops import LR, by_torch, made_in, of_outputs
from workbench.training import bounded
from workbench.training.bounded import Compared

transformers = pytest.importorskip("transformers")
WORDS, SEQ = 64128, 48
GIB = 1 << 30


def llama(words: int = WORDS, hidden: int = 32, layers: int = 6, **sizes) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=words, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
        **{"intermediate_size": 2 * hidden, "use_cache": False, **sizes},
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


def batches(steps: int, words: int = WORDS, seq: int = SEQ) -> list[dict[str, Tensor]]:
    """Batches of prompts, whose first 20 labels do not count."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        tokens = torch.randint(words, (2, seq), generator=generator)
        labels = tokens.clone()
        labels[:, :20] = -100
        found.append({"input_ids": tokens, "labels": labels})
    return found


@pytest.fixture(scope="module")
def torchs() -> list[float]:
    """Losses of two steps of torch's loop."""
    return by_torch(llama(), batches(2), of_outputs)[0]


@pytest.fixture
def seen(monkeypatch) -> list[Compared]:
    """Results of the comparisons that engines make."""
    found, compare = [], bounded.compare_in_time

    def noted(*given, **how) -> Compared:
        found.append(compare(*given, **how))
        return found[-1]

    monkeypatch.setattr("workbench.training.loop.compare_in_time", noted)
    return found


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (bounded.PARTS[-1:], "3 of 6 layers, 16 of 48 tokens a row, 2 rows"),
        pytest.param(
            bounded.PARTS[2:3], "16 of 48 tokens a row, 2 rows", marks=pytest.mark.thorough
        ),
        ((), "not compared"),
    ],
)
def test_a_large_vocabulary_trains_as_torchs_loop_however_much_is_compared(
    engine, monkeypatch, seen, torchs, parts, told
) -> None:
    monkeypatch.setattr(bounded, "PARTS", parts)
    with engine("stronghold", llama(), {"lr": LR}) as made:
        losses = [made.step(batch, of_outputs) for batch in batches(2)]
    assert losses == pytest.approx(torchs, rel=1e-5)
    assert told in seen[0].note


class Leaky(nn.Module):
    """A layer that adds, in secret, what its sister put out."""

    def __init__(self, kept: list, last: bool) -> None:
        super().__init__()
        self.linear, self.kept, self.last = nn.Linear(8, 8), kept, last

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        if not self.last:
            self.kept[:] = [y]
            return y
        return y + (self.kept[0] if self.kept else 0.0)


class Secretive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kept: list = []
        self.words = nn.Embedding(50, 8)
        self.layers = nn.ModuleList(Leaky(kept, last) for last in (False, False, True))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("part", bounded.PARTS[:3:2])
def test_a_part_shows_what_layers_would_do_otherwise(tmp_path, monkeypatch, part) -> None:
    monkeypatch.setattr(bounded, "PARTS", (part,))
    torch.manual_seed(0)
    tokens = torch.randint(50, (2, 32))
    with (
        made_in(tmp_path, "stronghold", Secretive()) as engine,
        pytest.raises(ValueError, match="the module would train otherwise than by itself"),
    ):
        engine.step((tokens, tokens), lambda out, batch: out.square().mean())


class Forgets(nn.Module):
    """Computes its activations again in the backward pass, by torch's older kind of checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(12), nn.Linear(12, 12)
        self.reentrant = reentrant

    def own(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(self.norm(x)))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.own, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("method", ["stronghold", "plain", "harmony-pp"])
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_checkpoints_of_a_users_own_train_as_torchs_loop(engine, method) -> None:
    def module() -> nn.Module:
        torch.manual_seed(0)
        blocks = [Forgets(reentrant=number != 1) for number in range(3)]
        return nn.Sequential(nn.Linear(12, 12), *blocks, nn.Linear(12, 3))

    generator = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(4, 12, generator=generator), torch.randint(3, (4,), generator=generator))
        for _ in range(3)
    ]

    def loss(out: Tensor, batch) -> Tensor:
        return F.cross_entropy(out, batch[1])

    wanted, _ = by_torch(module(), data, loss)
    with engine(method, module(), {"lr": LR}) as made:
        assert [made.step(batch, loss) for batch in data] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("budget", "parts"), [(9 * GIB, 1), (3 * GIB, 4)])
def test_a_budget_that_a_plan_calls_sufficient_holds(tmp_path, budget, parts) -> None:
    """A vocabulary of 128,256 words, tied; six steps, in which fragments would add up."""
    sizes = {"words": 128256, "hidden": 512, "layers": 4}
    data = [
        {name: rows.repeat(2, 1) for name, rows in batch.items()}
        for batch in batches(6, words=128256, seq=1024)
    ]
    losses = {}
    for cap in (None, budget):
        with made_in(
            tmp_path, "stronghold", llama(**sizes), {"lr": 1e-4}, device="cuda", dtype="bf16",
            device_memory=cap, microbatches=parts,
        ) as engine:  # fmt: skip
            torch.cuda.reset_peak_memory_stats()
            losses[cap] = [engine.step(batch, of_outputs) for batch in data]
            assert torch.cuda.max_memory_reserved() <= (cap or torch.cuda.mem_get_info()[1])
    assert losses[budget] == pytest.approx(losses[None], rel=1e-3)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() < GIB
