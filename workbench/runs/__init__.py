"""Runs: specs, records, the store, workers, sweeps, and parsers of other people's logs.

Nothing trains, plans for long or draws in a notebook's kernel. A sweep file is read by sweep.py. A
sweep, and the runs of an exhibit, have a process of their own (workbench/sweep_process.py);
people's orders and its state are small files in `results/sweeps/<name>/` (campaign.py), so several
pages may watch it, it is started once, and a page that comes later finds it. A sweep is attached
(it ends with the process that started it) or detached. A guard (guard.py) watches a worker and
whoever started it, keeps the time limit, and ends what is left, so that a SIGKILL anywhere leaves
no process. Both may be started before a command is checked, and import meanwhile (ahead.py). Each
GPU is held by one run at a time, and so are the processors, by a file lock that all processes of a
user share (device_locks.py).

A run's `timeline.json` keeps the events that its plan simulated, so whoever shows a run plans
nothing anew. A record says which share of cores and GPU others used (above 10 % a claim cannot be
told), and where the seconds before the first step went (starts.py).

A field of a spec or record has one spelling for forms, notebooks, tables and reports: axis.py
reads what people type for it, core/fields.py writes its name, unit and value.
"""
