"""Methods on one device: a placement, the program that serves it, its plan.

Placements (placement.py) differ in which units are resident, which of these have their optimizer
states on the host (*pulled*), how many weight slots the others share, which units keep activations,
and which host updates are *eager*. Plain training, L2L and STRONGHOLD are three placements of one
program. A slot is *free* after compute is done with it, parameters are *ready* after their update:
the published STRONGHOLD artifact ties the two together.
"""
