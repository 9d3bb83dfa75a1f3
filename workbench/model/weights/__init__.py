"""Weights in files of safetensors: a folder of Hugging Face's, a file, a run or a checkpoint.

`headers` reads the beginning of a file, `stored` finds the files that a path stands for and tells
their tensors, their digest and their faults, all from headers and without torch. Nothing here
unpickles anything, and no code of a folder runs.
"""
