"""Measures this machine, and the costs of a model's units on it.

Updates and both ways of the link meet at the host's memory: all three are measured at once, each
with a slowdown of its own (interference.py), besides the slowdowns of pairs; of several GPUs of one
host all ranks measure that together (contention.py). Where ranks share a processor, their lanes
take turns on its cores, and what passes take besides is measured by two short trainings, once
(rehearsal.py). Recorded passes take other times than launched ones: both are measured
(recorded.py). Without a GPU the device is half of the cores and a counted share of host memory, for
every method alike.
"""
