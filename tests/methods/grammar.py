"""Modules drawn from a grammar of habits: what a floor does, and what is done with all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods import kinds
from tests.methods.kinds import WIDTH, Mixer, Tower
from workbench.core.model_spec import ModelSpec


class Hooked(Mixer):
    """By a hook on its own forward pass, which copies have too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda _, given, out: 0.5 * out + given[0])


class Cached(Mixer):
    """Keeps a number that it computes once, and the last thing it saw, which it does not read."""

    scale = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = 1.0 + x.shape[1] / 100
        self.last = super().forward(x) * self.scale
        return self.last


class Writes(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.5)
        return super().forward(x - self.mean)


class InPlace(Mixer):
    def forward(self, x: Tensor) -> Tensor:
        y = 1.0 * self.change(x)
        y.mul_(0.5).add_(x)
        return y.view(len(x), 2, WIDTH // 2).flip(1).reshape(x.shape)


class Dropping(Mixer):
    """Along whichever dimension counts the samples now."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.whole = nn.Dropout(0.3), nn.Dropout1d(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.change(x).T).T + x
        return self.whole(x[:, None]).squeeze(1) + F.dropout(x, 0.1, self.training)


class Flat(Mixer):
    """Drops entries of the whole micro-batch at once."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x).flatten(), 0.2, self.training).view(x.shape)


class Own(Mixer):
    def __init__(self) -> None:
        super().__init__()
        self.dice = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(x.shape, generator=self.dice)


FLOORS = {
    "mixer": Mixer, "batched": kinds.Batched, "twice": kinds.Twice, "delta": kinds.Delta,
    "wet": lambda: kinds.Numbered("wet", 1), "dry": lambda: kinds.Numbered("dry", 2),
    "fourier": kinds.Fourier, "normed": kinds.normed, "formerly": kinds.formerly_normed,
    "relative": kinds.Relative, "hooked": Hooked, "cached": Cached, "in place": InPlace,
    "dropping": Dropping, "flat": Flat,
}  # fmt: skip
REFUSED_FLOORS = {
    "annealed": kinds.Annealed, "writes": Writes, "remembering": kinds.Remembering,
    "sometimes": kinds.Sometimes, "pythons": kinds.Pythons, "own generator": Own,
}  # fmt: skip
HABITS = (
    "frozen modes", "frozen weights", "guided", "siamese", "tied", "shared floor",
    "reads an earlier floor", "none",
)  # fmt: skip
REFUSED_HABITS = "gradient hook", "activation hook", "counter", "opposed"


@dataclass(frozen=True)
class Genome:
    floors: tuple[str, ...]
    habit: str
    augmented: bool


_floors = st.lists(st.sampled_from(sorted(FLOORS)), min_size=2, max_size=3).map(tuple)
_odd_floors = st.tuples(st.sampled_from(sorted(FLOORS)), st.sampled_from(sorted(REFUSED_FLOORS)))
_habits, _odd_habits = st.sampled_from(HABITS), st.sampled_from(REFUSED_HABITS)
GENOMES = st.one_of(
    st.builds(Genome, _floors, _habits, st.booleans()),
    st.builds(Genome, _odd_floors, _habits, st.booleans()),
    st.builds(Genome, _floors, _odd_habits, st.booleans()),
)


class Drawn(Tower):
    def __init__(self, genome: Genome) -> None:
        super().__init__()
        self.habit, self.calls = genome.habit, 0
        self.floors = nn.ModuleList({**FLOORS, **REFUSED_FLOORS}[name]() for name in genome.floors)
        self.guide = nn.Linear(WIDTH, WIDTH)
        if self.habit == "shared floor":
            self.floors.append(self.floors[0])
        if self.habit == "tied":
            self.guide.weight = self.entry.weight
        if self.habit == "frozen weights":
            self.entry.weight.requires_grad_(False)
        if self.habit == "gradient hook":
            self.entry.bias.register_hook(torch.relu)

    def train(self, mode: bool = True) -> Drawn:
        super().train(mode)
        if self.habit == "frozen modes":
            self.floors[0].eval()
        return self

    def climb(self, x: Tensor) -> Tensor:
        x = first = self.entry(x)
        for floor in self.floors:
            x = floor(x)
        if self.habit == "activation hook" and x.requires_grad:
            x.register_hook(torch.tanh)
        return x + first if self.habit == "reads an earlier floor" else x

    def forward(self, x: Tensor) -> Tensor:
        if self.habit == "counter":
            self.calls += 1
            x = x / self.calls
        x = self.guide(x).detach() + x if self.habit == "guided" else self.guide(x)
        y = self.climb(x)
        if self.habit == "siamese":
            y = y + self.climb(x.flip(-1))
        if self.habit == "opposed":
            y = kinds._Negated.apply(y)
        return self.exit(y)


def drawn_as(genome: Genome):
    def made(spec: ModelSpec):
        return Drawn(genome), kinds.Augmented() if genome.augmented else kinds.points()

    return made
