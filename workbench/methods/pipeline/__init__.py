"""Pipelines of any order: an order says which pass a position does next.

program.py adds, one visible step after the other, what passes read and make, messages, sums, norm
and updates, and frees each buffer after its last reader. Units stay on their device with their
states (updates.py), or visit it from the host, which updates them (swaps.py, places.py). A *shape*
is P x D, m and an order (shapes.py); stages are cut by measured time within memory (balance.py).
stage_pipeline.py trains a user's module so, in the processes that make it; stages that update by
themselves, of runs and of a user's module, are asynchronous_stages.py's and stage_stream.py's.
"""
