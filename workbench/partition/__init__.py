"""Cuts of a model into parts. Imports no torch."""
