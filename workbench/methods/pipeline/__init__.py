"""Pipelines of our own: an order of passes a rank, and one program that makes it a schedule."""
