"""The command line with the fake method in its table, for tests that kill it from outside."""

import sys

from workbench.cli import main
from workbench.core import methods
from workbench.runs import ahead, inputs

methods.METHODS["fake"] = methods.Method(
    name="fake", label="Fake", module="fake_method", summary="for tests"
)
methods.code_version = lambda name: "code"
inputs.check_inputs = lambda specs, store: None  # its texts are orders
ahead.ENOUGH_CORES = 1
sys.exit(main())
