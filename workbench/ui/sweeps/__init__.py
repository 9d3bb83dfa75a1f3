"""The page of sweeps: a form, its runs, and what becomes of them.

Sweep files are read by runs/sweep.py.
"""
