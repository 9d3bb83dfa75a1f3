"""Cuts of a model into parts. Imports no torch.

Chains of units: `chain.py` and `stages.py`. Operator graphs: `graph.py` is the data, `problem.py`
its costs, `placement.py` stages on devices, and `methods.py` the ways to find them by name.
"""
