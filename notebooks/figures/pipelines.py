# %% [markdown]
# # Pipelines and their bubbles
# **Claim** (this project's goals). An order of a few lines becomes a schedule that is proved,
# simulated and trained; on equal micro-batches each of ours is at least as fast as torch's own.
#
# **How it is tested.** Above, every order with four ranks and eight micro-batches in theory: a
# forward pass takes one quantum and a backward pass two. Below, samples per second of GPT-2 XL that
# were measured on named hardware, each order beside torch's schedule of that order; the rows are
# committed in `results/published-here/<device>/servers.csv`.

# %% tags=["parameters"]
size: str = "smoke"  # the folder the figure goes to: smoke, small or paper; the rows are the same
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # as in the other notebooks; nothing runs here, so it changes nothing
machine: str = ""  # a folder in results/published-here; else the one with most rows

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("pipelines", size, results, machine=machine)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
