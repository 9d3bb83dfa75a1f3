"""Ranks of all methods: who is watched, how long, and whose failure counts."""
