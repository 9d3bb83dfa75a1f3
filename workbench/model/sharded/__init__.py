"""Operators as modules over shards of a model's weights, one for each kind of operator."""

from __future__ import annotations

from workbench.model.operators.operator import Kind
from workbench.model.sharded.base import Sharded
from workbench.model.sharded.llama import LLAMAS
from workbench.model.sharded.pictures import PICTURES
from workbench.model.sharded.transformer import TRANSFORMERS

MODULES: dict[Kind, type[Sharded]] = TRANSFORMERS | PICTURES | LLAMAS
