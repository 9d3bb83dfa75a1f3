"""The sweep's process with the fake method in its table."""

import sys
from pathlib import Path

from workbench.core import methods
from workbench.sweep_process import main

methods.METHODS["fake"] = methods.Method(
    name="fake", label="Fake", module="fake_method", summary="for tests"
)
methods.code_version = lambda name: "code"
sys.exit(main(Path(sys.argv[1]), detached="--detached" in sys.argv))
