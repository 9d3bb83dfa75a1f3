"""The table of runs, their plots, and comparisons between them."""
