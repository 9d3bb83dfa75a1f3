"""torch's pipelines as modules of a method each: which one runs, a spec's method says."""

from __future__ import annotations

from types import SimpleNamespace

from baselines import torch_pipelines


def named(name: str) -> SimpleNamespace:
    """`plan` and `train` of one of torch's pipelines, whatever method the spec names."""
    return SimpleNamespace(
        __name__=name,
        plan=lambda spec, profile: torch_pipelines.plan(spec.with_(method=name), profile),
        train=lambda spec, *rest: torch_pipelines.train(spec.with_(method=name), *rest),
    )


gpipe, one_f_one_b = named("torch-gpipe"), named("torch-1f1b")
interleaved, zero_bubble = named("torch-interleaved"), named("torch-zero-bubble")
