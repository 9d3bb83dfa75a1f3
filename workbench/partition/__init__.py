"""Cuts of a model into parts. Imports no torch.

Which layers a device keeps, and which visit it, is a method's choice (methods/stronghold/search.py,
methods/harmony/search.py); how a module becomes a chain of layers, model/decompose.

Chains of units: `chain.py` and `stages.py`. Operator graphs: `graph.py` is the data, `problem.py`
its costs, `placement.py` stages on devices, and `methods.py` the ways to find them by name;
`analysis.py` what they take, and `registered.py` the stages of a model in files.
"""
