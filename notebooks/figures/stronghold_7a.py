# %% [markdown]
# # STRONGHOLD, figure 7a: throughput at each baseline's largest model
# **Claim** (section VI.B, page 9). At the largest model a baseline can train, STRONGHOLD is faster
# than L2L, ZeRO-Offload and ZeRO-Infinity, and keeps most of Megatron-LM's speed.
#
# **How it is tested.** The sizes are those that figure 6a's searches find (they run here if they
# have not). Each baseline and STRONGHOLD then train that model under the same budgets, STRONGHOLD
# choosing its window by itself. Without a GPU DeepSpeed's copies do not overlap its computation, so
# its speed is shown but not judged.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | eight runs of five steps after the searches of figure 6a | about a minute |
# | small | the same on one GPU | minutes |
# | paper | the published sizes | seconds; simulated without a GPU |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine, minutes; small: one GPU; paper: simulated without a GPU
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
steps: int = None  # steps of a run; None: the size's
seed: int = None  # seed of weights and order of data; None: the size's
machine: str = ""  # at size paper: a folder in results/published-here; else the fullest
overlay: bool = False  # at size paper: published values on the axes of those measured here

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "7a", size, results, hidden=hidden, batch=batch, steps=steps, seed=seed,
    machine=machine, overlay=overlay,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
