"""Memory of device, host and disk, laid out before the first step as the schedule says.

A tier keeps a ledger and refuses what passes its budget (tiers.py); a device's bytes are metered
(device_budget.py). Buffers of one slot share memory. Host memory that ranks share is one copy for
all (shared.py). The disk has two lanes, since reads and writes overlap (disk.py). A rank has places
for what visits it and for what it keeps from step to step (pack_memory.py); a user's stages keep
their own tensors (updates/stage_weights.py). Threads bring pages before they are waited for
(pages.py), and a process does so before a run has any (pages_ahead.py).
"""
