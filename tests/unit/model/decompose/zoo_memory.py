"""Small models whose tensors are constants, are views of others, or are written to."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

D = 6


class Constants(nn.Module):
    """Causal mask, a table that is a plain attribute, zeros of the batch's size, random noise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.table = torch.linspace(0, 1, D)
        self.lists = [torch.full((D,), 0.5)]
        self.register_buffer("mask", torch.tril(torch.ones(9, 9)), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        seq = x.shape[1]
        causal = torch.full((seq, seq), 2.0, device=x.device)
        causal.triu_(1)
        causal[0] = 0
        zeros = torch.zeros_like(x)
        noise = torch.rand(D)
        self.steps += 1
        x = self.a(causal @ x) + self.table
        x = self.b(self.mask[:seq, :seq] @ x + zeros) * self.lists[0]
        state = x.new_zeros(x.size(0), D)
        causal.mul_(0.5)  # layers before saw it as it was
        return self.c(causal @ x + noise) + state.unsqueeze(1) + self.table


class Expanded(nn.Module):
    """Views of constants in the shape of an input, of constants that are written to later."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        ones, zeros = torch.ones(D), torch.zeros(D)
        x = self.a(x)
        view = zeros.expand_as(x)
        x = self.b(x + ones.expand_as(x))
        ones.mul_(3)
        x = self.c(x + ones)
        zeros.add_(1)  # and so does the view
        return x + view


class InPlace(nn.Module):
    """Writes to the input, to a tensor that crossed cuts, and to two views that would cross."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(D, D) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        total = self.a(x)
        total += self.b(total.detach() * 1.5)
        left = total[:, :3]
        y = self.c(total * 2)
        left.mul_(2)
        y = self.d(y) + total
        filled = torch.zeros_like(y)
        filled[:, 1:] = y[:, 1:]
        total.add_(filled)
        return self.e(total) + left.sum()


class Aliases(nn.Module):
    """In eval mode dropout puts out what it is given, so a write there is a write to both."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.randn(D))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.by

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D, D), self.Shift(), self.Shift()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        z = self.drop(y)
        w = self.b(z)
        z += 1
        return self.c(w) + x + y + z


class Modes(nn.Module):
    """Dropout as a function, told by `self.training`; a loop with attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.a(x), 0.2, self.training)
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.3 if self.training else 0.0)
        return F.dropout(x, 0.5, self.training) + self.b(x)


class Overwriting(nn.Module):
    """A block looks at values, writes to its argument and puts it out; both are used later."""

    class Clamp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.ones(D))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            if x.abs().max() < 1e6:
                x.clamp_(min=0)
            return x, x + self.shift

    def __init__(self) -> None:
        super().__init__()
        self.a, self.clamp, self.b = nn.Linear(D, D), self.Clamp(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        y = self.b(self.clamp(first)[1])
        same, z = self.clamp(y)
        z = self.b(z)
        same += 1
        return z + y + first
