"""Run a method in this process, without worker or store, and compare it with plain training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor

from tests.exactness.pairs import covering
from tests.methods.plain import judge, made_up_profile
from tests.methods.rank_server import process
from workbench.core.spec import RunSpec
from workbench.ranks.launcher import RankLauncher
from workbench.runtime.checkpoint.manifest import MANIFEST
from workbench.runtime.executor.executor import Perturb
from workbench.training.rank_processes import launcher_of
from workbench.training.run import Training

LOSS_TOLERANCE = 1e-6
"""Relative."""
PARAMETER_TOLERANCE = 1e-5


def half(settings: Iterable[Any]) -> list[Any]:
    """Of a grid, half, and the rest for those who ask for all of it (conftest.py). In pairs, since
    what takes turns in a grid is even or odd."""
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            marks=[pytest.mark.thorough] if number % 4 in (1, 2) else [],
        )
        for number, one in enumerate(settings)
    ]


def paired(*axes: Sequence[Any]) -> list[Any]:
    """Settings of the grid over some axes: enough that every pair of values of two axes is in one,
    and the rest for those who ask for all of it (conftest.py)."""
    chosen = covering([dict(enumerate(axes))], lambda one: True, lambda one: 1, seed=0)
    enough = [tuple(one.values()) for one in chosen]
    return [
        pytest.param(*row, marks=[] if row in enough else [pytest.mark.thorough])
        for row in product(*axes)
    ]


class Silent:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict]] = []

    def phase(self, text: str) -> None:
        self.event("phase", text=text)

    def step(self, step: int, loss: float, seconds: float, grad_norm: float | None = None) -> None:
        self.event("step", step=step, loss=loss, seconds=seconds)

    def event(self, kind: str, **values) -> None:
        self.events.append((kind, values))


def fork_ranks(patch: pytest.MonkeyPatch, what: str = "") -> None:
    """Have ranks of runs forked from now on, of torch's own methods and of ours, where the question
    is not how they start (rank_server.py); `what` as rank_driver.py takes it."""
    for name, made in (
        ("trained_ranks.RankLauncher", RankLauncher),
        ("ranks.launcher_of", launcher_of),
    ):
        patch.setattr(f"workbench.training.{name}", partial(made, process=process(what)))


def start(
    method: ModuleType, spec: RunSpec, folder: Path, *, perturb: Perturb | None = None
) -> Training:
    """A training ready to run under the method's plan for a made-up profile."""
    return Training(spec, method.plan(spec, made_up_profile(spec)), folder, perturb=perturb)


def run(
    method: ModuleType, spec: RunSpec, folder: Path, *, perturb: Perturb | None = None
) -> tuple[Training, dict[str, Tensor]]:
    """Train to the end; the training (closed) and the final parameters."""
    training = start(method, spec, folder, perturb=perturb)
    try:
        training.run(Silent())
        return training, training.parameters()
    finally:
        training.close()


def unseal(path: Path, *, sums: bool = True, **changes: Any) -> None:
    """Write a checkpoint's manifest as versions did that sealed none."""
    told = json.loads((path / MANIFEST).read_text())
    del told["version"], told["sha256"]
    if sums:
        told["crc32"] = {name: crc for name, (_, crc) in told["files"].items()}
    told["files"] = {name: size for name, (size, _) in told["files"].items()}
    told |= {name: [*map(str, told[name])] for name in ("losses", "grad_norms")}
    kept = {name: value for name, value in (told | changes).items() if value is not ...}
    (path / MANIFEST).write_text(json.dumps(kept) + "\n")


def assert_equals_plain(spec: RunSpec, training: Training, parameters: dict[str, Tensor]) -> None:
    """Losses and parameters are those of plain training."""
    assert_judged(spec, training.history.losses, parameters)


def assert_judged(
    spec: RunSpec,
    losses: list[float],
    parameters: dict[str, Tensor],
    off: float = LOSS_TOLERANCE,
) -> None:
    """Losses (relative) and parameters are those of plain training."""
    expected_losses, expected = judge(spec)
    assert len(losses) == spec.steps
    for step, (ours, plain) in enumerate(zip(losses, expected_losses, strict=True)):
        assert abs(ours - plain) <= off * abs(plain), (step, ours, plain)
    assert parameters.keys() == expected.keys()
    assert_near(parameters, expected)


def assert_near(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], most: float = PARAMETER_TOLERANCE
) -> None:
    """Each expected tensor is there, and no element differs by more."""
    for name, value in expected.items():
        worst = float((found[name] - value.detach()).abs().max())
        assert worst <= most, (name, worst)
