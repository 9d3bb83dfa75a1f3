"""A run from its plan to its outcome, and steps that a user's own loop asks for.

`workbench run` on one device is run.py, on ranks of one host ranks.py: the run's own process starts
the ranks (rank_processes.py), reports, saves and resumes, and each rank trains (rank.py). A loop of
one's own asks for steps by loop.py and loop_ranks.py. Each run of a module that is not ours begins
by comparing its layers with the module as its author wrote it (compare.py), in a loop as much of
it as takes 15 s (bounded.py). Stages are compared with their model in cut_check.py. Weights of any
method are evaluated between two steps (evaluation.py; a user's own module, own_evaluation.py), on
the device as long as it has room (places.py), those of ranks by the first one (rank_evaluation.py),
those of an asynchronous pipeline without a pause (snapshots.py).
"""
