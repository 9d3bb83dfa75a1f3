"""Data and pipeline parallelism whose devices swap, as virtualized memory does (see README.md)."""
