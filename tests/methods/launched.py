"""Passes that are launched in the place of recordings, where no GPU is: they are refused in another
order than recordings run in, and keep what one chain keeps."""

from __future__ import annotations

import torch

from workbench.runtime.passes.bundle import bundled
from workbench.runtime.passes.replay import NOTHING


class Launched:
    """As `Replays`."""

    stream = None

    nbytes = 0

    def __init__(self, run, boundary, meter, *, whole=False):
        self.run, self.whole, self.begun, self.passes = run, whole, None, 0
        self.boundary, self.meter = boundary, meter

    def record(self, forwards, chains, checkpoints=NOTHING):
        self.forwards, self.chains = forwards, chains

    def forward(self, key, x):
        assert self.begun is None
        with torch.no_grad():
            return self.made(self.forwards[key[0]], 0, x, key[1])[1]

    def recompute(self, key, x, index=0):
        chain = self.chains[key[0]]
        if index == 0:
            assert self.begun is None
            self.begun, self.kept = [key] * (2 * len(chain.kinds)), [((), x)]
        self.enter(key)
        with torch.enable_grad():
            self.kept.append(self.made(chain, index, self.kept[-1][1], key[1]))

    def output(self, key):
        return tuple(t.detach() for t in self.kept[-1][1])

    def backward(self, key, output_grads, index=0):
        self.enter(key)
        chain = self.chains[key[0]]
        if index == len(chain.kinds) - 1:
            self.above = output_grads
        x, y = self.kept.pop()
        wanted = self.ends(chain)[index + 1].differentiable
        ends = [t for t, d in zip(y, wanted, strict=True) if d]
        inputs = [t for t in x if t.requires_grad]
        grads = torch.autograd.grad(
            ends, [*inputs, *chain.parameters[index]], self.above, materialize_grads=True
        )
        self.above, grads = grads[: len(inputs)], [*grads[len(inputs) :]]
        return (() if index else self.above), grads

    def forget(self):
        self.begun = None

    def let_go(self):
        self.forwards = self.chains = {}

    def close(self):
        pass

    def ends(self, chain):
        return chain.ends or (self.boundary,) * (len(chain.kinds) + 1)

    def made(self, chain, index, x, uniform):
        """Inputs, cut from the graph, and outputs of a pass."""
        wanted = self.ends(chain)[index].differentiable
        x = tuple(t.detach().requires_grad_(d) for t, d in zip(x, wanted, strict=True))
        given = x[:1] if uniform and not self.whole else x
        y = bundled(self.run(chain.kinds[index], chain.modules[index], *given))
        return x, y + (() if self.whole else x[1:])

    def enter(self, key):
        assert self.begun.pop() == key
        self.begun, self.passes = self.begun or None, self.passes + 1
