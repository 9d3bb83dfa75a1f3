# %% [markdown]
# # Offloaded training on named hardware
# **Claim** (this project's goals). With 32 GiB of a GPU's memory STRONGHOLD keeps most of the speed
# that plain training has with all of it, and its planner says beforehand how fast and how large a
# run will be.
#
# **How it is tested.** The benchmark trained every method on models of 1.7, 4.0 and 5.1 billion
# parameters, at batch 4 and 16, under caps of 32, 24 and 16 GiB; its rows are committed in
# `results/published-here/<device>/offload.csv`. This notebook reads and draws them. Plain training
# counts at its best, with activations kept where they fit. What was not measured is named, and a
# goal without its run stays open.

# %% tags=["parameters"]
size: str = "smoke"  # the folder the figure goes to: smoke, small or paper; the rows are the same
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # as in the other notebooks; nothing runs here, so it changes nothing
machine: str = ""  # a folder in results/published-here; else the one with most rows

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("here_offload", size, results, machine=machine)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
