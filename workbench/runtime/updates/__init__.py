"""Optimizers on device and host, clipping by the global norm, and the end of a step.

A bf16 weight is the upper half of its fp32 master (split.py): transfers read it, updates write it,
and only 16 bits more are stored. It is rounded to nearest with ties away from zero, not to even,
which differs from torch's cast in exact ties.

An eager update is made before the global norm is known, and *settled* after it (optimizer.py): it
stands, or is taken back and made again in one pass. A guess depends on gradients alone, never on
timing, so equal runs give equal bits. Updates that are deferred for exact clipping run in the order
of the next forward pass, beside it. A step of stages ends in one small sum (step_end.py);
stages that update by themselves have an optimizer each (stage_updates.py, sgd_tf.py), states that
checkpoints hold (stage_states.py; of shards shard_updates.py), weights that they lend each other
(stage_loans.py), and versions of weights, where passes read others than the newest
(weight_versions.py).
"""
