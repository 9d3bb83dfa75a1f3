"""Runs a schedule on real hardware: threads, passes, memory, messages, updates, checkpoints.

A rank (rank.py) walks its lanes of a schedule (executor/). An engine does each action (passes/), in
memory that was laid out before the first step (memory/). Ranks exchange messages and sums
(transport/), weights are updated on the device or the host (updates/), and kept (checkpoint/).
protocols.py has the interfaces between these rooms. No file here names a method.
"""
