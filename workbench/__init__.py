"""Workbench: train models that do not fit on the GPUs at hand, and see which method does it best.

Every method is a planner that emits a schedule, which is plain data; one validator, one simulator,
one runtime and one drawer serve all of them. Every run ends as a record, and figures only ever read
records.

This module imports nothing, so that a command line that only asks for help, or a tool that only
draws a schedule, never pays for torch. Start reading at `workbench.schedule`.
"""

__version__ = "0.1.0"
