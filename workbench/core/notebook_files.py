"""nbformat, which reads and writes notebooks, imported in a tenth of its time.

It stands on jsonschema, which compiles a grammar of international addresses where JupyterLab has
brought one: 0.9 s of 1. No notebook is checked for such addresses.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

GRAMMAR = "rfc3987_syntax"


def quick_nbformat() -> ModuleType:
    """The library; jsonschema takes the grammar's package for absent, which others may import."""
    hidden = GRAMMAR not in sys.modules
    if hidden:
        sys.modules[GRAMMAR] = None
    try:
        return import_module("nbformat")
    finally:
        if hidden:
            del sys.modules[GRAMMAR]
