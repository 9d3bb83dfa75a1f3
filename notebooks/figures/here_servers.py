# %% [markdown]
# # Training on servers of several capped GPUs
# **Claim** (this project's goals). On GPUs with the memory of small cards Harmony-PP trains GPT-2
# XL several times as fast as ZeRO-3 with CPU offload, moves the bytes that its plan says, and is
# faster on more GPUs.
#
# **How it is tested.** The benchmark trained every method on several GPUs of one server, each
# capped at 11 GiB, and data and pipeline parallelism with all of their memory; and models whose
# states are ten times what the GPUs may hold. Its rows are committed in
# `results/published-here/<device>/servers.csv`. This notebook reads and draws them: samples per
# second, bytes over the host links as counted and as planned, speed over the number of GPUs, and
# predictions beside measurements. What was not measured is named, and a goal without its run stays
# open.

# %% tags=["parameters"]
size: str = "smoke"  # the folder the figure goes to: smoke, small or paper; the rows are the same
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # as in the other notebooks; nothing runs here, so it changes nothing
machine: str = ""  # a folder in results/published-here; else the one with most rows

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("here_servers", size, results, machine=machine)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
