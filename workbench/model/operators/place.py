"""Where an operator is in a model of this project, and the form of what it puts out: data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Form(NamedTuple):
    """A tensor of some samples, dimension 0."""

    tail: tuple[int, ...]
    """Shape of a sample."""
    shard: int
    """Dimension that the tp devices of a row split where they hold no replicas."""

    def shape(self, samples: int) -> tuple[int, ...]:
        """Shape for so many samples."""
        return (samples, *self.tail)


class Window(NamedTuple):
    """A convolution's."""

    stride: int
    padding: int


class Heads(NamedTuple):
    """Attention of an operator."""

    count: int
    width: int
    queries: int
    """Their number in a sample."""
    keys: int
    causal: bool = False
    """Whether a query reads the keys up to its own place alone."""
    masked: bool = False
    """Whether keys that are padding are not read."""
    memory: bool = False
    """Whether keys and values are another tensor's."""
    fused: bool = False
    """Whether plain training computes all of it in one call, which draws the masks."""
    shared: int = 0
    """Heads of queries that read one head of keys and values, each of which lies behind its own
    queries; 0 where queries and keys lie apart, and are as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """An operator in a model."""

    unit: int
    form: Form
    """Of what it puts out."""
    path: str = ""
    """Of the submodule whose parameters it has; empty for the unit itself, or where it has none."""
    tables: tuple[str, str] = ("", "")
    """Names there of the words' and the positions' vectors of an embedding."""
    input: int = 0
    """Number of the model's input that an embedding reads."""
    second: Form | None = None
    """Of a second tensor that it puts out."""
    site: str = ""
    """Of its dropout in the unit."""
    draw: int | None = None
    """Number of its dropout among all of the model, where that is its key."""
    heads: Heads | None = None
    window: Window | None = None
    rectified: bool = False
    """Whether a norm puts out what is above zero alone."""
    biased: bool = True
    """Whether its matrices have biases."""
    eps: float = 1e-5
    """Of a norm of squares."""
    padding: int | None = None
    """Token whose vector an embedding does not train."""

    def local(self, name: str) -> str:
        """Name in its unit of a parameter of the operator."""
        return f"{self.path}.{name}" if self.path else name
