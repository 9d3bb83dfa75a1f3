"""Predicted and measured lanes of a run, side by side."""
