"""Aceso (EuroSys'24): tp, dp, partition and recomputation of every operator, uneven stages.

A profile database (database.py) tells the cost of each operator; costs.py makes of it time and
memory of a plan (plan.py); search.py improves a plan by alleviating its bottleneck. Nothing here
imports torch.
"""
