"""Measures this machine, and the costs of a model's units on it."""
