"""Forward and backward passes of units: what each action does, and with which tensors.

A unit is one layer or several in a row. differentiation.py performs its passes for all engines of
several ranks: pack_engine.py, whose layers visit a rank from shared memory or stay there, and
stage_engine.py, whose stages stay with processes of any hosts. engine.py is for one device. Each
finds its memory by the buffer names of the schedule, so a new method needs no code here.

A backward pass may be halved (halves.py), or begin at a checkpoint (template.py). On a GPU, passes
that take no longer than their launches do are recordings (replay.py; recorded_blocks.py for one
device), in memory that the schedule names. A tensor that another lane reads last is free when the
lane that made it has waited for that lane. Stages compute with 16-bit copies of their weights, cast
once a step (working.py), and one compiled graph serves all layers of a kind (compiled.py), or all
runs of divided operators that are alike (shard_runs.py). Evaluations pass forward alone, with
weights that come and go (visiting.py).
"""
