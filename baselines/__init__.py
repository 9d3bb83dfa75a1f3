"""The systems people compare with, behind the same protocol as our own methods.

Each folder is a thin adapter over the real library where one exists (DeepSpeed, megatron-core);
nothing here is a fork, and nothing here is tuned down. `deepspeed_ops` holds what the DeepSpeed
adapters share: its native operators, built once into the environment.
"""
