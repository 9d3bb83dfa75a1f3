"""Places where a user's module may be cut into pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn


class CutPoint(nn.Module):
    """Marks a tensor at which a module may be cut; computes nothing.

    Call it once in a forward pass. Whatever is needed behind it and was made before crosses the
    cut: tensors whose batch dimension follows the batch, or that do not depend on it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The tensor itself."""
        return x


def cut_points(model: nn.Module) -> list[str]:
    """Paths of all cut points of a model. One that a module keeps in a plain list, tuple or
    dictionary becomes a submodule of it first."""
    known = {id(part) for part in model.modules()}
    for part in [*model.modules()]:
        for name, value in [*vars(part).items()]:
            for number, found in enumerate(_listed(value)):
                if id(found) not in known:
                    known.add(id(found))
                    part.add_module(f"{name}[{number}]", found)
    return [path for path, part in model.named_modules() if isinstance(part, CutPoint)]


def _listed(value: object) -> Iterator[CutPoint]:
    """Cut points in a plain container, nested ones too."""
    if isinstance(value, CutPoint):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _listed(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _listed(one)
