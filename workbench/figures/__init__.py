"""The kit of all exhibits: rows, looks, drawings, verdicts. It reads rows and starts no run.

Each figure, with its claims, is in exhibits/.
"""
