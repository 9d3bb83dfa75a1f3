"""The module of each kind of operator."""

from __future__ import annotations

from workbench.model.operators.operator import Kind
from workbench.model.operators.picture_modules import PICTURES
from workbench.model.operators.sharded import Sharded
from workbench.model.operators.transformer_modules import TRANSFORMERS

MODULES: dict[Kind, type[Sharded]] = TRANSFORMERS | PICTURES
