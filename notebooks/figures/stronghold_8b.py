# %% [markdown]
# # STRONGHOLD, figure 8b: scaling with depth
# **Claim** (section VI.B, page 9). With a fixed window, STRONGHOLD's time per iteration grows
# linearly with the layers.
#
# **How it is tested.** The same window trains ever deeper models; a straight line is fitted. Every
# run was simulated before it ran, from a profile of this machine, so the figure also shows what a
# prediction is worth.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | window 4, 4 to 12 layers of hidden 256, on any machine | half a minute |
# | small | window 8, 8 to 48 layers of hidden 1024, one GPU | minutes |
# | paper | window 15, 16 to 92 layers of hidden 2048 | seconds; simulated without a GPU |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine, minutes; small: one GPU; paper: simulated without a GPU
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record
layers: str = None  # such as "2, 4, 8"; None: the size's
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
window: int = None  # layers of STRONGHOLD's window; None: the size's
steps: int = None  # steps of a run; None: the size's
seed: int = None  # seed of weights and order of data; None: the size's
machine: str = ""  # at size paper: a folder in results/published-here; else the fullest
overlay: bool = False  # at size paper: published values on the axes of those measured here

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "8b", size, results, layers=layers, hidden=hidden, batch=batch, window=window, steps=steps,
    seed=seed, machine=machine, overlay=overlay,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
