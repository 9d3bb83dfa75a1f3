"""Passes that are launched in the place of recordings, where no GPU is: they are refused in another
order than recordings run in, and keep what one chain keeps."""

from __future__ import annotations

import torch

from workbench.runtime.passes.replay import NOTHING


class Launched:
    """As `Replays`."""

    stream = None

    def __init__(self, run, boundary, rows, meter):
        self.run, self.begun, self.passes = run, None, 0

    def record(self, forwards, chains, checkpoints=NOTHING):
        self.forwards, self.chains = forwards, chains

    def forward(self, key, x):
        assert self.begun is None
        block = self.forwards[key[0]]
        with torch.no_grad():
            return (self.run(block.kinds[0], block.modules[0], *self.given(key, x)), *x[1:])

    def recompute(self, key, x, index=0):
        chain = self.chains[key[0]]
        if index == 0:
            assert self.begun is None
            self.begun, self.x, self.kept = [key] * (2 * len(chain.kinds)), x, [(None, x[0])]
        self.enter(key)
        first = self.kept[-1][1].detach().requires_grad_()
        with torch.enable_grad():
            beside = self.given(key, self.x)[1:]
            y = self.run(chain.kinds[index], chain.modules[index], first, *beside)
        self.kept.append((first, y))

    def output(self, key):
        return (self.kept[-1][1].detach(), *self.x[1:])

    def backward(self, key, output_grad, index=0):
        self.enter(key)
        wanted = self.chains[key[0]].parameters[index]
        if index == len(self.chains[key[0]].kinds) - 1:
            self.above = output_grad
        first, y = self.kept.pop()
        self.above, *grads = torch.autograd.grad(
            y, [first, *wanted], self.above, materialize_grads=True
        )
        return (None if index else self.above), grads

    def forget(self):
        self.begun = None

    def close(self):
        pass

    def given(self, key, x):
        return x[:1] if key[1] else x

    def enter(self, key):
        assert self.begun.pop() == key
        self.begun, self.passes = self.begun or None, self.passes + 1
