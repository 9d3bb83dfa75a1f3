"""Weights, moments and all else that training goes on from, in files.

A checkpoint continues under any method, window, tier or number of ranks, and under no other model,
data, clipping or optimizer, nor where other parameters are trained or decay (continues.py). Several
processes write the files of one (distributed_checkpoint.py; together.py, where one is asked and all
do): one renaming puts it in its place. Its manifest is sealed (manifest.py).
"""
