"""Measures this machine, and the costs of a model's units on it.

Costs of units of any grain have one form (units.py): those of one micro-batch, with the other ways
to run a unit's passes as variants, and between several sizes in proportion. One bench times and
weighs passes (bench.py): those of a unit by itself (alone.py), of a decoder's small step or of each
kind of unit (measure.py), of a module's calls (operators.py), halved, from a checkpoint and
recorded (variants.py), and of a slice of a user's module (slice_timing.py).

Updates and both ways of the link meet at the host's memory: all three are measured at once, each
with a slowdown of its own (interference.py), besides the slowdowns of pairs; of several GPUs of one
host all ranks measure that together (contention.py). Where ranks share a processor, their lanes
take turns on its cores, and what passes take besides is measured by two short trainings, once
(rehearsal.py). Collectives of groups of devices are timed by size (collective_timing.py). Without a
GPU the device is half of the cores and a counted share of host memory, for every method alike.
"""
